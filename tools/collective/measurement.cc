#include "tools/collective/measurement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>

#include "tools/cli/quantile.h"
#include "tools/cli/units.h"
#include "tools/cli/wrapped_text.h"
#include "tools/job/foreign_json.h"
#include "tools/job/rank_names.h"
#include "transport/rank_mask.h"
#include "xdp/base/printable.h"

namespace tarpon {
namespace {

using PackedCauses = std::array<double, 6>;  // without names, because a log has many of them

std::vector<PackedCauses> pack(const std::vector<LossCauses>& causes) {
  std::vector<PackedCauses> packed;
  packed.reserve(causes.size());
  for (const LossCauses& one : causes) {
    packed.push_back(
        {one.cut, one.network, one.at_owner, one.late_ranks, one.void_shards, one.gone});
  }
  return packed;
}

std::vector<LossCauses> unpack(const std::vector<PackedCauses>& packed) {
  std::vector<LossCauses> causes;
  causes.reserve(packed.size());
  for (const PackedCauses& one : packed) {
    causes.push_back({one[0], one[1], one[2], one[3], one[4], one[5]});
  }
  return causes;
}

}  // namespace

std::string to_text(const IterationLog& log, std::size_t first, std::size_t count) {
  const auto piece = [&](const auto& values) {
    const auto rest = std::span(values).subspan(std::min(first, values.size()));
    const auto taken = rest.first(std::min(count, rest.size()));
    return std::vector(taken.begin(), taken.end());
  };
  const nlohmann::json json{{"bit", log.bit},
                            {"time_us", piece(log.time_us)},
                            {"late", piece(log.late)},
                            {"lost", piece(log.lost)},
                            {"bound_us", piece(log.bound_us)},
                            {"held_us", piece(log.held_us)},
                            {"closing", piece(log.closing)},
                            {"causes", pack(piece(log.causes))},
                            {"void_shards", piece(log.void_shards)},
                            {"verdicts", piece(log.verdicts)},
                            {"halted", log.halted},
                            {"nonfinite", log.nonfinite},
                            {"flows", log.flows},
                            {"coded", log.coded},
                            {"wrong", log.wrong},
                            {"squared_error", log.squared_error},
                            {"lost_fraction", log.lost_fraction},
                            {"lost_stage1", log.lost_stage1},
                            {"lost_stage2", log.lost_stage2},
                            {"cpu_s", log.cpu_s},
                            {"sent_packets", log.sent_packets},
                            {"sent_bytes", log.sent_bytes},
                            {"max_rss_kib", log.max_rss_kib},
                            {"outcome", log.outcome},
                            {"outcome_text", log.outcome_text},
                            {"error", log.error},
                            {"peer_late", log.peer_late}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<IterationLog> iteration_log_from(const std::string& text) {
  const auto parsed = parse_foreign_json(text);
  if (!parsed || !parsed->is_object()) return std::nullopt;
  const nlohmann::json& json = *parsed;
  IterationLog log;
  std::vector<PackedCauses> causes;
  std::vector<Rank> nonfinite;
  const auto line = [&](const char* name, std::string& text) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_string()) return false;
    text = printable(found->get<std::string>(), kLongestMessage);
    return true;
  };
  const bool good =
      take(json, "bit", log.bit) && take(json, "time_us", log.time_us) &&
      take(json, "late", log.late) && take(json, "lost", log.lost) &&
      take(json, "bound_us", log.bound_us) && take(json, "held_us", log.held_us) &&
      take(json, "closing", log.closing) && take(json, "causes", causes) &&
      take(json, "void_shards", log.void_shards) && take(json, "verdicts", log.verdicts) &&
      line("halted", log.halted) && take(json, "nonfinite", nonfinite) &&
      take(json, "flows", log.flows) && take(json, "coded", log.coded) &&
      take(json, "wrong", log.wrong) && take(json, "squared_error", log.squared_error) &&
      take(json, "lost_fraction", log.lost_fraction) &&
      take(json, "lost_stage1", log.lost_stage1) && take(json, "lost_stage2", log.lost_stage2) &&
      take(json, "cpu_s", log.cpu_s) && take(json, "sent_packets", log.sent_packets) &&
      take(json, "sent_bytes", log.sent_bytes) && take(json, "max_rss_kib", log.max_rss_kib) &&
      json.contains("outcome") && line("outcome_text", log.outcome_text) &&
      line("error", log.error) && take(json, "peer_late", log.peer_late);
  if (!good || log.bit >= kMaskRanks) return std::nullopt;
  log.causes = unpack(causes);
  log.nonfinite.insert(nonfinite.begin(), nonfinite.end());
  log.outcome = json.at("outcome");
  return log;
}

std::string Measurement::function_name() const {
  return std::string(reduces(collective) ? name(function) : "none");
}

int Measurement::root_number() const {
  return has_root(collective) ? static_cast<int>(root) : -1;
}

double Measurement::mean_us() const {
  if (time_us.empty()) return 0;
  return std::accumulate(time_us.begin(), time_us.end(), 0.0) / static_cast<double>(time_us.size());
}

double Measurement::mean_lost() const {
  if (lost.empty()) return 0;
  return std::accumulate(lost.begin(), lost.end(), 0.0) / static_cast<double>(lost.size());
}

double Measurement::algbw(double us) const {
  return us > 0 ? static_cast<double>(size) / us / 1e3 : 0;
}

double Measurement::busbw(double us, std::uint32_t world) const {
  return algbw(us) * row_of(collective).bus_factor(world) * (1 - mean_lost());
}

namespace {

/// The loss in iteration `i` of `log`.
CallLoss loss_in(const IterationLog& log, std::size_t i) {
  CallLoss loss;
  if (i < log.bound_us.size()) loss.bound_us = log.bound_us[i];
  if (i < log.held_us.size()) loss.held_us = log.held_us[i];
  if (i < log.causes.size()) {
    loss.causes = log.causes[i];
    loss.counted = loss.causes.of_live_ranks();
  }
  if (i < log.late.size()) loss.late = log.late[i];
  if (i < log.void_shards.size()) loss.void_shards = log.void_shards[i];
  return loss;
}

}  // namespace

void merge(const std::vector<IterationLog>& logs, Measurement& measurement) {
  std::size_t iterations = 0;
  std::uint64_t late_ever = 0;
  for (const IterationLog& log : logs) {
    iterations = std::max(iterations, log.time_us.size());
    measurement.rank_time_us.push_back(log.time_us);
    measurement.flows.push_back(log.flows);
    measurement.coded = std::max(measurement.coded, log.coded);
    measurement.wrong += log.wrong;
    measurement.cpu_s += log.cpu_s;
    const double calls = std::max<double>(1, static_cast<double>(log.time_us.size()));
    measurement.sent_packets.push_back(static_cast<double>(log.sent_packets) / calls);
    measurement.sent_bytes.push_back(static_cast<double>(log.sent_bytes) / calls);
    measurement.max_rss_kib = std::max(measurement.max_rss_kib, log.max_rss_kib);
    measurement.lost_fraction = std::max(measurement.lost_fraction, log.lost_fraction);
    measurement.lost_stage1 = std::max(measurement.lost_stage1, log.lost_stage1);
    measurement.lost_stage2 = std::max(measurement.lost_stage2, log.lost_stage2);
    measurement.nonfinite.insert(log.nonfinite.begin(), log.nonfinite.end());
    measurement.outcomes.push_back(log.outcome);
    if (!log.outcome_text.empty()) {
      measurement.outcome_texts.push_back(
          fmt::format("rank {}: {}", measurement.outcomes.size() - 1, log.outcome_text));
    }
  }
  if (!logs.empty()) {
    for (const int verdict : logs[0].verdicts) {
      if (verdict >= 0 && verdict < 3) ++measurement.verdicts[static_cast<std::size_t>(verdict)];
    }
  }
  for (std::size_t i = 0; i < iterations; ++i) {
    CallLoss loss;
    for (std::size_t rank = 0; rank < logs.size(); ++rank) {
      CallLoss one = loss_in(logs[rank], i);
      const std::uint64_t own = std::uint64_t{1} << logs[rank].bit;
      // A late rank does not know whether it was gone for the others. Their reports count.
      if ((one.late & own) != 0) one.counted = 0;
      loss.add(one);
    }
    late_ever |= loss.late;
    double slowest = 0;
    double slowest_in_time = 0;
    double lost = 0;
    int closing = 0;
    for (std::size_t rank = 0; rank < logs.size(); ++rank) {
      if (i >= logs[rank].time_us.size()) continue;
      slowest = std::max(slowest, logs[rank].time_us[i]);
      if (i < logs[rank].lost.size()) lost = std::max(lost, logs[rank].lost[i]);
      if (i < logs[rank].closing.size()) closing = std::max(closing, logs[rank].closing[i]);
      if ((loss.late >> logs[rank].bit & 1) != 0) continue;
      slowest_in_time = std::max(slowest_in_time, logs[rank].time_us[i]);
    }
    // If the ranks found all of them late, the slowest of all counts.
    measurement.time_us.push_back(slowest_in_time > 0 ? slowest_in_time : slowest);
    measurement.lost.push_back(lost);
    measurement.calls.push_back(loss);
    measurement.waited += loss.held_us > 0 ? 1 : 0;
    measurement.closed_early += closing == static_cast<int>(Closing::early) ? 1 : 0;
    measurement.closed_by_bound += closing == static_cast<int>(Closing::bound) ? 1 : 0;
  }
  measurement.late = ranks_of(late_ever);
}

namespace {

nlohmann::json value(std::optional<double> number) {
  return number ? nlohmann::json(*number) : nlohmann::json(nullptr);
}

/// Adds what bounds did and what calls lost; null in exact mode.
void add_loss(const Measurement& m, nlohmann::json& json) {
  for (const char* name :
       {"bound_us", "bound_max_us", "bound_rule", "loss_target", "mean_loss", "causes"}) {
    json[name] = nullptr;
  }
  if (m.mode != Mode::bounded) return;
  const std::vector<double> bounds = bounds_of(m.calls);
  json["bound_us"] = value(quantile(bounds, 0.5));
  json["bound_max_us"] = value(quantile(bounds, 1));
  json["bound_rule"] = m.bound_rule;
  json["loss_target"] = value(m.loss_target);
  json["mean_loss"] = mean_counted(m.calls);
  json["causes"] = mean_causes(m.calls);
}

}  // namespace

nlohmann::json to_json(const Measurement& m, std::uint32_t world) {
  const double mean = m.mean_us();
  const bool allreduce = m.collective == Collective::allreduce;
  nlohmann::json json{{"collective", row_of(m.collective).command},
                      {"size", m.size},
                      {"count", m.count},
                      {"type", m.type == DataType::float32   ? "float32"
                               : m.type == DataType::float64 ? "float64"
                                                             : std::string(name(m.type))},
                      {"redop", m.function_name()},
                      {"root", m.root_number()},
                      {"place", m.in_place ? "in" : "out"},
                      {"mode", std::string(name(m.mode))},
                      {"datapath", m.datapath},
                      {"flows", m.flows},
                      {"algorithm", allreduce ? nlohmann::json(name(m.algorithm)) : nullptr},
                      {"time_us",
                       {{"min", value(quantile(m.time_us, 0))},
                        {"p50", value(quantile(m.time_us, 0.5))},
                        {"p99", value(quantile(m.time_us, 0.99))},
                        {"max", value(quantile(m.time_us, 1))},
                        {"mean", mean},
                        {"all", m.time_us},
                        {"ranks", m.rank_time_us}}},
                      {"alg_bw", m.algbw(mean)},
                      {"bus_bw", m.busbw(mean, world)},
                      {"nwrong", m.checked ? nlohmann::json(m.wrong) : nlohmann::json(nullptr)},
                      {"lost_fraction", m.lost_fraction},
                      {"lost_all", m.lost},
                      {"lost_stage1", m.lost_stage1},
                      {"lost_stage2", m.lost_stage2},
                      {"late_ranks", m.late},
                      {"cpu_s", m.cpu_s},
                      {"sent_packets", m.sent_packets},
                      {"sent_bytes", m.sent_bytes},
                      {"max_rss_kib", m.max_rss_kib}};
  add_loss(m, json);
  json["coded"] = m.coded;
  json["squared_error"] = value(m.squared_error);
  json["closed_early"] = m.closed_early;
  json["closed_by_bound"] = m.closed_by_bound;
  json["waited"] = m.waited;
  json["nonfinite_ranks"] = m.nonfinite;
  json["outcomes"] = m.outcomes;
  json["verdicts"] = {{"apply", m.verdicts[0]}, {"skip", m.verdicts[1]}, {"halt", m.verdicts[2]}};
  json["divergence"] = nullptr;
  if (m.divergence) {
    json["divergence"] = {{"differing_share", m.divergence->share()},
                          {"max_relative", m.divergence->max_relative}};
  }
  return json;
}

nlohmann::json to_json(const PartialRun& partial) {
  if (partial.time_us.empty()) return nullptr;
  return {{"size", partial.size},
          {"place", partial.in_place ? "in" : "out"},
          {"time_us", partial.time_us}};
}

std::string interrupted_line(const PartialRun& partial, std::uint32_t iterations) {
  if (partial.time_us.empty()) return "";
  const double mean = std::accumulate(partial.time_us.begin(), partial.time_us.end(), 0.0) /
                      static_cast<double>(partial.time_us.size());
  return fmt::format("# interrupted          : {} B {}: {} of {} iterations, mean {:.2f} us\n",
                     partial.size, partial.in_place ? "in-place" : "out-of-place",
                     partial.time_us.size(), iterations, mean);
}

std::string loss_line(const std::optional<Measurement>& out, const std::optional<Measurement>& in) {
  std::vector<CallLoss> calls;
  std::optional<double> target;
  for (const auto* one : {&out, &in}) {
    if (!*one || (*one)->mode != Mode::bounded) continue;
    calls.insert(calls.end(), (*one)->calls.begin(), (*one)->calls.end());
    target = (*one)->loss_target;
  }
  return calls.empty() ? "" : wrapped("# bounded: " + loss_text(calls, target)) + "\n";
}

std::string bound_warning(const Measurement& m) {
  constexpr double kTolerated = 0.01;
  constexpr double kMargin = 2;  // because calls have a tail
  constexpr double kOverrun = 1.5;
  if (m.mode != Mode::bounded || !m.given_bound_us || !m.divergence) return "";
  const double wanted_us = m.divergence->exact_us * kMargin;
  if (m.mean_lost() <= kTolerated || wanted_us <= *m.given_bound_us) return "";
  const auto duration = [](double us) {
    return format_duration(std::chrono::microseconds(static_cast<std::int64_t>(us)));
  };
  // Round to two digits.
  const double unit = std::pow(10, std::floor(std::log10(wanted_us)) - 1);
  std::string text = fmt::format(
      "# warning: --bound {} is too short for {}: {:.3g} % is lost; exact calls take {}, so "
      "--bound {} would do",
      duration(*m.given_bound_us), format_bytes(m.size), m.mean_lost() * 100,
      duration(m.divergence->exact_us), duration(std::ceil(wanted_us / unit) * unit));
  if (m.mean_us() > kOverrun * *m.given_bound_us) {
    text += fmt::format(". Calls take {} all the same: the work on the buffers needs that time{}",
                        duration(m.mean_us()), m.coded > 0 ? "; --codec off needs less" : "");
  }
  return wrapped(text) + "\n";
}

namespace {

constexpr const char* kNoteIndent = "#       ";

}  // namespace

std::string notes(const Measurement& m) {
  if (m.mode != Mode::bounded) {
    const bool has_bounded_form = !reduces(m.collective) || can_be_bounded(m.type, m.function);
    if (m.asked_mode != Mode::bounded || has_bounded_form) return "";
    return fmt::format("#   {}: ran exact: {} {} has no bounded form\n",
                       m.in_place ? "in-place" : "out-of-place", name(m.type), name(m.function));
  }
  std::string text = fmt::format("#   {}: {} of {} closed early, {} by the bound",
                                 m.in_place ? "in-place" : "out-of-place", m.closed_early,
                                 m.time_us.size(), m.closed_by_bound);
  if (m.waited > 0) text += fmt::format(", {} waited beyond it for live ranks", m.waited);
  if (m.coded > 0) text += fmt::format("; {} of {} coded", m.coded, m.time_us.size());
  const bool may_be_coded = m.collective == Collective::allreduce;
  if (may_be_coded && m.type != DataType::float32)
    text += fmt::format("; {} is never coded", name(m.type));
  if (m.squared_error.value_or(0) > 0) {
    text += fmt::format("; squared error {:.3g} of the exact result's square", *m.squared_error);
  }
  if (m.divergence && m.divergence->differing > 0) {
    text += fmt::format("; replicas differ in {:.4f} % of the elements, by up to {:.3g}",
                        m.divergence->share() * 100, m.divergence->max_relative);
  }
  if (m.verdicts[0] + m.verdicts[1] + m.verdicts[2] > 0) {
    text += fmt::format("; {} applied, {} skipped, {} halted", m.verdicts[0], m.verdicts[1],
                        m.verdicts[2]);
  }
  if (!m.nonfinite.empty()) {
    text += fmt::format("; the whole result is NaN: NaN or infinity in the input of {}",
                        rank_names({m.nonfinite.begin(), m.nonfinite.end()}));
  }
  text = wrapped(text, kNoteIndent) + "\n";
  constexpr std::size_t kMost = 4;
  const std::size_t shown = std::min(kMost, m.outcome_texts.size());
  for (std::size_t i = 0; i < shown; ++i) {
    text += wrapped("#     " + m.outcome_texts[i], kNoteIndent) + "\n";
  }
  if (const std::size_t rest = m.outcome_texts.size() - shown; rest > 0) {
    text += fmt::format("#     {} more ranks: --json lists them\n", rest);
  }
  return text;
}

}  // namespace tarpon
