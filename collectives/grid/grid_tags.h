// Which tags of the communicators of a grid the calls of a tag use.
//
// The two stages in a host have tags of their own: there the order of an all_gather and of the next
// reduce_scatter depends on the network, and may differ between ranks.
#pragma once

#include <cstdint>

#include "collectives/reserved_tags.h"

namespace tarpon::grid {

/// Tags of users are below this one.
inline constexpr std::uint32_t kFirstGridTag = kFirstReservedTag / 2 - 2;
inline constexpr std::uint32_t kGridBarrierTag = kFirstGridTag;        // barriers and resync()
inline constexpr std::uint32_t kGridAgreementTag = kFirstGridTag + 1;  // agree()

constexpr std::uint32_t scatter_tag(std::uint32_t tag) {
  return 2 * tag;
}
constexpr std::uint32_t gather_tag(std::uint32_t tag) {
  return 2 * tag + 1;
}

}  // namespace tarpon::grid
