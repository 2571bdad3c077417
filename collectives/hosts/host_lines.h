// Which calls use which lines of the memory of a host.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "collectives/reserved_tags.h"

namespace tarpon::hosts {

/// Tags that have a line of their own: those below this one, and that of barriers. Their calls need
/// no agreement on a line. The line counts the calls by their numbers, so no rank may forget them
/// (EndpointOptions::kept_tags).
inline constexpr std::uint32_t kOwnTagsBelow = 16;
inline constexpr std::uint32_t kOwnLines = kOwnTagsBelow + 1;
/// Lines for the calls of all other tags: so many of these are open at once. The others wait for
/// their turn, in the order of submission: ranks that have more calls open have to submit them in
/// one order. A line costs memory from its first use on.
inline constexpr std::uint32_t kCommonLines = 111;
/// Own lines come first.
inline constexpr std::uint32_t kLines = kOwnLines + kCommonLines;

/// The line of `tag`; nullopt: each of its calls gets a common line.
constexpr std::optional<std::uint32_t> own_line(std::uint32_t tag) {
  if (tag < kOwnTagsBelow) return tag;
  if (tag == kBarrierTag) return kOwnTagsBelow;
  return std::nullopt;
}

/// The tags with a line of their own.
inline constexpr auto kOwnTags = [] {
  std::array<std::uint32_t, kOwnLines> tags{};
  for (std::uint32_t tag = 0; tag < kOwnTagsBelow; ++tag) tags[tag] = tag;
  tags[kOwnTagsBelow] = kBarrierTag;
  return tags;
}();

}  // namespace tarpon::hosts
