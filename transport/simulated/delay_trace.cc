#include "transport/simulated/delay_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace tarpon {
namespace {

constexpr std::string_view kHeader = "time_us,rank,delay_us";
constexpr std::uint64_t kMostUs = 1'000'000'000'000;  // 11 days, so that sums cannot overflow

/// Takes the field before `separator`, or all that is left where it is '\0'.
bool take_number(std::string_view& line, char separator, std::uint64_t most, std::uint64_t& value) {
  const std::size_t end = separator == '\0' ? line.size() : line.find(separator);
  if (end == std::string_view::npos) return false;
  const auto [stop, error] = std::from_chars(line.data(), line.data() + end, value);
  if (error != std::errc{} || stop != line.data() + end || value > most) return false;
  line.remove_prefix(separator == '\0' ? end : end + 1);
  return true;
}

Duration microseconds(std::uint64_t us) {
  return std::chrono::microseconds(static_cast<std::int64_t>(us));
}

bool parse_sample(std::string_view line, DelaySample& sample) {
  std::uint64_t time = 0, rank = kUnknownRank, delay = 0;
  if (!take_number(line, ',', kMostUs, time)) return false;
  if (line.starts_with("*,")) {
    line.remove_prefix(2);
  } else if (!take_number(line, ',', kUnknownRank - 1, rank)) {
    return false;
  }
  if (!take_number(line, '\0', kMostUs, delay)) return false;
  sample = {Time(microseconds(time)), static_cast<Rank>(rank), microseconds(delay)};
  return true;
}

}  // namespace

Result<std::vector<DelaySample>> parse_delay_trace(std::string_view text, std::string_view name) {
  std::vector<DelaySample> samples;
  bool header_seen = false;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const bool good = header_seen ? parse_sample(line, samples.emplace_back()) : line == kHeader;
    if (!good) {
      return fail(
          Error::Code::invalid_argument,
          fmt::format("{}:{}: \"{}\": expected {}", name, number, line,
                      header_seen ? "whole numbers \"time_us,rank,delay_us\", rank * for all"
                                  : "the line \"time_us,rank,delay_us\" first"));
    }
    header_seen = true;
  }
  if (!header_seen) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{}: empty: expected the line \"{}\" first", name, kHeader));
  }
  return samples;
}

DelayTrace::DelayTrace(std::vector<DelaySample> samples, std::uint32_t ranks)
    : samples_(std::move(samples)), of_rank_(ranks) {
  std::stable_sort(samples_.begin(), samples_.end(),
                   [](const DelaySample& a, const DelaySample& b) { return a.time < b.time; });
}

Duration DelayTrace::at(Time now, Rank rank) {
  for (; next_ < samples_.size() && samples_[next_].time <= now; ++next_) {
    const DelaySample& sample = samples_[next_];
    if (sample.rank == kUnknownRank) {
      of_all_ = sample.delay;
    } else if (sample.rank < of_rank_.size()) {
      of_rank_[sample.rank] = sample.delay;
    }
  }
  return of_all_ + of_rank_[rank];
}

}  // namespace tarpon
