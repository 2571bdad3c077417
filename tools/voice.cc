#include "tools/voice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "collectives/environment.h"
#include "tools/colour.h"

namespace tarpon {
namespace {

constexpr std::string_view kRank = "rank ", kRanks = "ranks ";

}  // namespace

Voice::Voice(Rank rank) : speaker_(fmt::format("rank {}", rank)) {}

void Voice::error(std::string_view message) const {
  const bool named = speaker_.starts_with(kRank) && names_a_rank(message);
  const std::string line = named ? std::string(message) : fmt::format("{}: {}", speaker_, message);
  const Colour colour(STDERR_FILENO, process_environment());
  fmt::print(stderr, "{}\n", colour.failure(line));
}

bool names_a_rank(std::string_view text) {
  const std::string_view beginning = text.starts_with(kRanks) ? kRanks : kRank;
  if (!text.starts_with(beginning)) return false;
  text.remove_prefix(beginning.size());
  const std::size_t end = std::min(text.find_first_not_of("0123456789-, "), text.size());
  std::string_view rest = text.substr(end);
  if (rest.starts_with("and ")) rest = rest.substr(std::min(rest.find(':'), rest.size()));
  return end > 0 && rest.starts_with(": ");
}

}  // namespace tarpon
