#include "tools/voice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "collectives/environment.h"
#include "tools/colour.h"

namespace tarpon {
namespace {

constexpr std::string_view kRank = "rank ", kRanks = "ranks ";

}  // namespace

Voice::Voice(Rank rank) : rank_(rank) {}

void Voice::error(std::string_view message) const {
  const std::optional<Rank> named = rank_ ? first_named_rank(message) : std::nullopt;
  if (named && *named != *rank_) return;
  const std::string speaker = named ? "" : rank_ ? fmt::format("rank {}: ", *rank_) : "tarpon: ";
  const Colour colour(STDERR_FILENO, process_environment());
  fmt::print(stderr, "{}\n", colour.failure(speaker + std::string(message)));
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
  if (rest.starts_with("and ")) rest = rest.substr(std::min(rest.find(':'), rest.size()));
  return rest.starts_with(": ") ? std::optional(first) : std::nullopt;
}

}  // namespace tarpon
