#include "tools/scale/report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/cli/units.h"
#include "tools/scale/quantiles.h"

namespace tarpon::scale {
namespace {

double tail_of(const CellResult& cell) {
  const Duration half = quantile(cell.completions, 0.5);
  return half > Duration{} ? ms(quantile(cell.completions, 0.99)) / ms(half) : 0;
}

std::string rate(double bits_per_second) {
  return format_rate(static_cast<std::uint64_t>(bits_per_second));
}

std::string queue(std::uint64_t bytes) {
  return bytes == 0 ? "unlimited" : format_bytes(bytes);
}

}  // namespace

std::string describe(const Plan& plan) {
  const Network& network = plan.network;
  std::string text = fmt::format(
      "# {} a rank, seed {}; a packet of the model is a train of several (last column)\n"
      "# link: {}, interface {}, queue {}, delay {}, MTU {}, loss {:g} %\n",
      format_bytes(plan.bytes), plan.seed, rate(network.bits_per_second),
      network.egress_bits_per_second > 0 ? rate(network.egress_bits_per_second) : "unlimited",
      queue(network.queue_bytes), format_duration(network.delay), network.mtu, network.loss * 100);
  if (network.tail > 1) {
    text += fmt::format(
        "# tail: P99/P50 {:g} where 8 ranks wait for the slowest; {:g} % of the ranks have an "
        "episode in an operation\n",
        network.tail, network.stragglers * 100);
  }
  if (network.late > Duration{}) {
    text += fmt::format(
        "# late: rank {}, by {}; times count from its arrival; a bucket takes {:.3f} ms on a "
        "link\n",
        kLateRank, format_duration(network.late), ms(bucket_time(plan)));
  }
  if (network.core_bits_per_second > 0) {
    text += fmt::format("# shared core: {}\n", rate(network.core_bits_per_second));
  }
  if (network.background_bits_per_second > 0) {
    text += fmt::format("# background: {} each way between ranks 0 and 1, bursts of {}\n",
                        rate(network.background_bits_per_second),
                        format_bytes(network.background_burst_bytes));
  }
  const std::string bound = plan.bound
                                ? format_duration(*plan.bound)
                                : fmt::format("learnt, target {:g} %", plan.loss_target * 100);
  return text + fmt::format("# bounded: bound {}; reliable: {} for the tail of a burst\n", bound,
                            plan.tail_loss == TailLoss::probe ? "probe" : "timeout");
}

namespace {

/// P50 in times of a bucket on a link, and as published, where a late rank is waited for.
std::string after_arrival(const Plan& plan, const CellResult& cell) {
  if (plan.network.late <= Duration{}) return "";
  const double modelled = ms(quantile(cell.completions, 0.5)) / ms(bucket_time(plan));
  const auto published = published_after_arrival(cell.algorithm, cell.ranks);
  return fmt::format("  {:>7.3f}  {:>9}", modelled,
                     published ? fmt::format("{:.3f}", *published) : "-");
}

}  // namespace

std::string table(const Plan& plan, const std::vector<CellResult>& results) {
  const bool late = plan.network.late > Duration{};
  std::string text = fmt::format(
      "#{:>6}  {:<18}  {:>5}  {:>9}  {:>9}  {:>9}  {:>9}  {:>7}  {:>7}  {:>7}  {:>5}{}\n", "ranks",
      "algorithm", "count", "P50", "P90", "P99", "max", "P99/P50", "lost", "worst", "train",
      late ? "  buckets  published" : "");
  text +=
      fmt::format("#{:>6}  {:<18}  {:>5}  {:>9}  {:>9}  {:>9}  {:>9}  {:>7}  {:>7}  {:>7}  {:>5}\n",
                  "", "", "", "(ms)", "(ms)", "(ms)", "(ms)", "", "(%)", "(%)", "(pkt)");
  for (const CellResult& cell : results) {
    const bool enough = cell.completions.size() >= kEnoughForTail;
    const auto of_tail = [enough](double value) {
      return enough ? fmt::format("{:.3f}", value) : std::string("-");
    };
    text += fmt::format(
        " {:>6}  {:<18}  {:>5}  {:>9.3f}  {:>9.3f}  {:>9}  {:>9.3f}  {:>7}  {:>7.3f}  {:>7.3f}  "
        "{:>5}{}\n",
        cell.ranks, name_of(cell.algorithm), cell.completions.size(),
        ms(quantile(cell.completions, 0.5)), ms(quantile(cell.completions, 0.9)),
        of_tail(ms(quantile(cell.completions, 0.99))), ms(quantile(cell.completions, 1)),
        of_tail(tail_of(cell)), cell.lost_mean * 100, cell.lost_worst * 100, cell.train_packets,
        after_arrival(plan, cell));
  }
  return text;
}

namespace {

const char* name_of(Repair repair) {
  switch (repair) {
    case Repair::none:
      return "none";
    case Repair::gather:
      return "gather";
    case Repair::all:
      return "all";
  }
  return "?";
}

nlohmann::json network_json(const Network& network) {
  return {{"bits_per_second", network.bits_per_second},
          {"egress_bits_per_second", network.egress_bits_per_second},
          {"queue_bytes", network.queue_bytes},
          {"burst_bytes", network.burst_bytes},
          {"core_bits_per_second", network.core_bits_per_second},
          {"delay_us", std::chrono::duration<double, std::micro>(network.delay).count()},
          {"mtu", network.mtu},
          {"frame_bytes", network.frame},
          {"loss", network.loss},
          {"tail", network.tail},
          {"stragglers", network.stragglers},
          {"late_ms", ms(network.late)},
          {"background_bits_per_second", network.background_bits_per_second},
          {"background_burst_bytes", network.background_burst_bytes}};
}

nlohmann::json cell_json(const CellResult& cell) {
  nlohmann::json out = {{"algorithm", name_of(cell.algorithm)},
                        {"ranks", cell.ranks},
                        {"train_packets", cell.train_packets},
                        {"p99_over_p50", tail_of(cell)},
                        {"lost", cell.lost_mean},
                        {"lost_worst", cell.lost_worst},
                        {"cut", cell.cut},
                        {"late_ranks", cell.late},
                        {"closed_early", cell.early_share},
                        {"closed_by_bound", cell.bound_share},
                        {"packets", cell.packets},
                        {"retransmitted", cell.retransmitted},
                        {"probes", cell.probes},
                        {"timeouts", cell.timeouts},
                        {"queue_drops", cell.queue_drops}};
  for (const auto& [name, share] :
       {std::pair{"p50_ms", 0.5}, {"p90_ms", 0.9}, {"p99_ms", 0.99}, {"max_ms", 1.0}}) {
    out[name] = ms(quantile(cell.completions, share));
  }
  if (!cell.bounds.empty()) {
    out["bound_ms"] = ms(quantile(cell.bounds, 0.5));
    out["bound_max_ms"] = ms(quantile(cell.bounds, 1.0));
  }
  for (const Duration one : cell.completions) out["completions_ms"].push_back(ms(one));
  return out;
}

}  // namespace

nlohmann::json config_json(const Plan& plan) {
  return {{"bytes", plan.bytes},
          {"bucket_ms", ms(bucket_time(plan))},
          {"seed", plan.seed},
          {"bound", plan.bound ? format_duration(*plan.bound) : "learnt"},
          {"loss_target", plan.loss_target},
          {"repair", name_of(plan.repair)},
          {"tail_loss", plan.tail_loss == TailLoss::probe ? "probe" : "rto"},
          {"network", network_json(plan.network)}};
}

nlohmann::json results_json(const std::vector<CellResult>& results) {
  nlohmann::json json = nlohmann::json::array();
  for (const CellResult& cell : results) json.push_back(cell_json(cell));
  return json;
}

}  // namespace tarpon::scale
