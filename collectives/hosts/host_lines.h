// The tags whose calls may go through the memory of a host.
#pragma once

#include <cstdint>
#include <optional>

#include "collectives/reserved_tags.h"

namespace tarpon::hosts {

/// Those below this one, and that of barriers.
inline constexpr std::uint32_t kHostTags = 16;
inline constexpr std::uint32_t kHostTagsInAll = kHostTags + 1;

/// The index of `tag` in the memory of a host; nullopt: its calls do not go through it.
constexpr std::optional<std::uint32_t> host_tag(std::uint32_t tag) {
  if (tag < kHostTags) return tag;
  if (tag == kBarrierTag) return kHostTags;
  return std::nullopt;
}

}  // namespace tarpon::hosts
