#include "tools/measurement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace tarpon {

std::string to_text(const IterationLog& log, std::size_t first, std::size_t count) {
  const auto piece = [&](const auto& values) {
    const auto rest = std::span(values).subspan(std::min(first, values.size()));
    const auto taken = rest.first(std::min(count, rest.size()));
    return std::vector(taken.begin(), taken.end());
  };
  const nlohmann::json json{{"time_us", piece(log.time_us)},
                            {"late", piece(log.late)},
                            {"wrong", log.wrong},
                            {"lost_fraction", log.lost_fraction},
                            {"lost_stage1", log.lost_stage1},
                            {"lost_stage2", log.lost_stage2},
                            {"cpu_s", log.cpu_s},
                            {"max_rss_kib", log.max_rss_kib},
                            {"error", log.error}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<IterationLog> iteration_log_from(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    IterationLog log;
    json.at("time_us").get_to(log.time_us);
    json.at("late").get_to(log.late);
    json.at("wrong").get_to(log.wrong);
    json.at("lost_fraction").get_to(log.lost_fraction);
    json.at("lost_stage1").get_to(log.lost_stage1);
    json.at("lost_stage2").get_to(log.lost_stage2);
    json.at("cpu_s").get_to(log.cpu_s);
    json.at("max_rss_kib").get_to(log.max_rss_kib);
    json.at("error").get_to(log.error);
    return log;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::optional<double> quantile(std::vector<double> values, double q) {
  const auto samples = static_cast<double>(values.size());
  const double tail = std::min(q, 1 - q);
  const bool extreme = tail > 0 && tail < 0.5;
  if (values.empty() || (extreme && samples * tail < 0.999999)) return std::nullopt;
  const double position = std::ceil(q * samples) - 1;
  const auto index = static_cast<std::size_t>(std::clamp(position, 0.0, samples - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

double Measurement::mean_us() const {
  if (time_us.empty()) return 0;
  return std::accumulate(time_us.begin(), time_us.end(), 0.0) / static_cast<double>(time_us.size());
}

double Measurement::algbw(double us) const {
  return us > 0 ? static_cast<double>(size) / us / 1e3 : 0;
}

double Measurement::busbw(double us, std::uint32_t world) const {
  return algbw(us) * 2 * (world - 1) / world;
}

void merge(const std::vector<IterationLog>& logs, Measurement& measurement) {
  std::size_t iterations = 0;
  std::uint64_t late_ever = 0;
  for (const IterationLog& log : logs) {
    iterations = std::max(iterations, log.time_us.size());
    measurement.wrong += log.wrong;
    measurement.cpu_s += log.cpu_s;
    measurement.max_rss_kib = std::max(measurement.max_rss_kib, log.max_rss_kib);
    measurement.lost_fraction = std::max(measurement.lost_fraction, log.lost_fraction);
    measurement.lost_stage1 = std::max(measurement.lost_stage1, log.lost_stage1);
    measurement.lost_stage2 = std::max(measurement.lost_stage2, log.lost_stage2);
  }
  for (std::size_t i = 0; i < iterations; ++i) {
    std::uint64_t late = 0;
    for (const IterationLog& log : logs) late |= i < log.late.size() ? log.late[i] : 0;
    late_ever |= late;
    double slowest = 0;
    double slowest_in_time = 0;
    for (std::size_t rank = 0; rank < logs.size(); ++rank) {
      if (i >= logs[rank].time_us.size()) continue;
      slowest = std::max(slowest, logs[rank].time_us[i]);
      if ((late >> rank & 1) != 0) continue;
      slowest_in_time = std::max(slowest_in_time, logs[rank].time_us[i]);
    }
    // Ranks that all find one another late leave nobody to go by.
    measurement.time_us.push_back(slowest_in_time > 0 ? slowest_in_time : slowest);
  }
  for (Rank rank = 0; rank < logs.size(); ++rank) {
    if ((late_ever >> rank & 1) != 0) measurement.late.push_back(rank);
  }
}

nlohmann::json to_json(const Measurement& m, std::uint32_t world) {
  const auto value = [](std::optional<double> number) {
    return number ? nlohmann::json(*number) : nlohmann::json(nullptr);
  };
  const double mean = m.mean_us();
  return {{"size", m.size},
          {"count", m.count},
          {"type", m.type == DataType::float32   ? "float32"
                   : m.type == DataType::float64 ? "float64"
                                                 : std::string(name(m.type))},
          {"redop", std::string(name(m.function))},
          {"place", m.in_place ? "in" : "out"},
          {"mode", std::string(name(m.mode))},
          {"datapath", m.datapath},
          {"algorithm", std::string(name(Algorithm::tar))},
          {"time_us",
           {{"min", value(quantile(m.time_us, 0))},
            {"p50", value(quantile(m.time_us, 0.5))},
            {"p99", value(quantile(m.time_us, 0.99))},
            {"max", value(quantile(m.time_us, 1))},
            {"mean", mean},
            {"all", m.time_us}}},
          {"alg_bw", m.algbw(mean)},
          {"bus_bw", m.busbw(mean, world)},
          {"nwrong", m.wrong},
          {"lost_fraction", m.lost_fraction},
          {"lost_stage1", m.lost_stage1},
          {"lost_stage2", m.lost_stage2},
          {"late_ranks", m.late},
          {"cpu_s", m.cpu_s},
          {"max_rss_kib", m.max_rss_kib}};
}

std::string table_header() {
  return fmt::format(
      "#\n"
      "# {:>11} {:>13} {:>8} {:>6} {:>4} {:^34} {:^34} in-place: this tool's own\n"
      "# {:>11} {:>13} {:>8} {:>6} {:>4} {:>9} {:>7} {:>7} {:>8} {:>9} {:>7} {:>7} {:>8}"
      " {:>9} {:>9} {:>9} {:>7} {}\n"
      "# {:>11} {:>13} {:>8} {:>6} {:>4} {:>9} {:>7} {:>7} {:>8} {:>9} {:>7} {:>7} {:>8}"
      " {:>9} {:>9} {:>9} {:>7} {}\n",
      "", "", "", "", "", "out-of-place", "in-place",                                        //
      "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time",  //
      "algbw", "busbw", "#wrong", "p50", "p99", "max", "lost", "late",                       //
      "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)",
      "", "(us)", "(us)", "(us)", "(%)", "ranks");
}

namespace {

std::string columns(const std::optional<Measurement>& m, std::uint32_t world, bool checked) {
  if (!m) return fmt::format("{:>9} {:>7} {:>7} {:>8}", "-", "-", "-", "-");
  const double mean = m->mean_us();
  return fmt::format("{:>9.2f} {:>7.3f} {:>7.3f} {:>8}", mean, m->algbw(mean),
                     m->busbw(mean, world), checked ? fmt::format("{}", m->wrong) : "N/A");
}

std::string microseconds(std::optional<double> value) {
  return value ? fmt::format("{:.2f}", *value) : "-";
}

}  // namespace

std::string table_row(const std::optional<Measurement>& out, const Measurement& in,
                      std::uint32_t world, bool checked) {
  return fmt::format(
      "  {:>11} {:>13} {:>8} {:>6} {:>4} {} {} {:>9} {:>9} {:>9} {:>7.4f} {}\n", in.size, in.count,
      name(in.type), name(in.function), -1, columns(out, world, checked),
      columns(in, world, checked), microseconds(quantile(in.time_us, 0.5)),
      microseconds(quantile(in.time_us, 0.99)), microseconds(quantile(in.time_us, 1)),
      in.lost_fraction * 100, in.late.empty() ? "-" : fmt::format("{}", fmt::join(in.late, ",")));
}

std::string table_footer(std::uint64_t wrong, double mean_busbw) {
  return fmt::format(
      "# Out of bounds values : {} {}\n"
      "# Avg bus bandwidth    : {:.6g}\n"
      "#\n",
      wrong, wrong == 0 ? "OK" : "FAILED", mean_busbw);
}

}  // namespace tarpon
