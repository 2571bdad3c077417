#include "tools/cli/voice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "collectives/environment/launcher.h"
#include "tools/cli/colour.h"

namespace tarpon {
namespace {

constexpr std::string_view kRank = "rank ", kRanks = "ranks ", kAnd = "and ", kMore = " more";

}  // namespace

Voice::Voice(Rank rank) : rank_(rank) {}

Voice Voice::of_launcher(const Environment& environment) {
  const auto place = find_job_place({}, environment);
  const bool several = place && *place && (*place)->world_size > 1;
  return several ? Voice((*place)->rank) : Voice();
}

void Voice::error(std::string_view message) const {
  const std::optional<Rank> named = rank_ ? first_named_rank(message) : std::nullopt;
  if (named && *named != *rank_) return;
  const std::string speaker = named ? "" : rank_ ? fmt::format("rank {}: ", *rank_) : "tarpon: ";
  const Colour colour(STDERR_FILENO, process_environment());
  // fmt::print() would throw where standard error cannot be written.
  std::fputs((colour.failure(speaker + std::string(message)) + "\n").c_str(), stderr);
}

void Voice::note(std::string_view message) const {
  fmt::print(stderr, "{}: {}\n", rank_ ? fmt::format("rank {}", *rank_) : "tarpon", message);
}

std::optional<Rank> first_named_rank(std::string_view text) {
  const std::string_view beginning = text.starts_with(kRanks) ? kRanks : kRank;
  if (!text.starts_with(beginning)) return std::nullopt;
  text.remove_prefix(beginning.size());
  Rank first = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), first).ec != std::errc()) {
    return std::nullopt;
  }
  std::string_view rest =
      text.substr(std::min(text.find_first_not_of("0123456789-, "), text.size()));
  if (rest.starts_with(kAnd)) {  // "and 3 more: "
    rest.remove_prefix(kAnd.size());
    rest.remove_prefix(std::min(rest.find_first_not_of("0123456789"), rest.size()));
    if (!rest.starts_with(kMore)) return std::nullopt;
    rest.remove_prefix(kMore.size());
  }
  return rest.starts_with(": ") ? std::optional(first) : std::nullopt;
}

}  // namespace tarpon
