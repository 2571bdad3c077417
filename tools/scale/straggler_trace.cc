#include "tools/scale/straggler_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace tarpon::scale {
namespace {

constexpr std::string_view kHeader = "operation,rank,from_us,length_us";
constexpr std::uint64_t kMostUs = 3'600'000'000;  // an hour, as the longest bound
constexpr std::uint64_t kMostOperations = 1'000'000;

bool parse_sample(std::string_view line, StragglerSample& sample) {
  std::array<std::uint64_t, 4> values{};
  const std::array<std::uint64_t, 4> most{kMostOperations, kUnknownRank - 1u, kMostUs, kMostUs};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t end = std::min(line.find(','), line.size());
    const std::string_view field = line.substr(0, end);
    const bool last = i + 1 == values.size();
    if (last != (end == line.size())) return false;
    line.remove_prefix(last ? end : end + 1);
    if (i == 1 && field == "*") {
      values[i] = kUnknownRank;
      continue;
    }
    const auto [stop, error] =
        std::from_chars(field.data(), field.data() + field.size(), values[i]);
    if (error != std::errc{} || stop != field.data() + field.size() || values[i] > most[i]) {
      return false;
    }
  }
  sample.operation = static_cast<std::uint32_t>(values[0]);
  sample.rank = static_cast<Rank>(values[1]);
  sample.episode.from = std::chrono::microseconds(static_cast<std::int64_t>(values[2]));
  sample.episode.length = std::chrono::microseconds(static_cast<std::int64_t>(values[3]));
  sample.episode.late_start = values[2] == 0;
  return true;
}

}  // namespace

Result<std::vector<StragglerSample>> parse_straggler_trace(std::string_view text,
                                                           std::string_view name) {
  std::vector<StragglerSample> samples;
  bool header_seen = false;
  for (std::size_t number = 1; !text.empty() || !header_seen; ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    const bool over = text.empty();
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() && !over) continue;
    const bool good = header_seen ? parse_sample(line, samples.emplace_back()) : line == kHeader;
    if (!good) {
      return fail(Error::Code::invalid_argument,
                  fmt::format("{}:{}: \"{}\": expected {} \"{}\"{}", name, number, line,
                              header_seen ? "whole numbers" : "the line", kHeader,
                              header_seen ? ", rank * for all" : " first"));
    }
    header_seen = true;
  }
  return samples;
}

void replay(const std::vector<StragglerSample>& trace, std::uint32_t operation,
            std::vector<Episode>& episodes) {
  std::fill(episodes.begin(), episodes.end(), Episode{});
  for (const StragglerSample& sample : trace) {
    if (sample.operation != operation) continue;
    if (sample.rank == kUnknownRank) std::fill(episodes.begin(), episodes.end(), sample.episode);
    if (sample.rank < episodes.size()) episodes[sample.rank] = sample.episode;
  }
}

}  // namespace tarpon::scale
