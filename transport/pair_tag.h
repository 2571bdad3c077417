// Tags of messages from one rank to another. Only these two ranks take part in their operations.
//
// Such a tag names the sender, the receiver and a tag of the caller, so that messages match by
// these three. All other tags are tags of all ranks.
//
// Values and pure functions.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>
#include <optional>

#include "transport/rank.h"
#include "transport/rank_mask.h"

namespace tarpon {

struct PairTag {
  Rank sender = 0;    // below 64
  Rank receiver = 0;  // below 64
  std::uint16_t tag = 0;
};

inline constexpr std::uint32_t kFirstPairTag = 0xe0000000;
inline constexpr std::uint32_t kEndOfPairTags = 0xf0000000;

/// Bits 22 to 27: the sender; 16 to 21: the receiver; 0 to 15: the caller's tag.
constexpr std::uint32_t encode(const PairTag& pair) {
  return kFirstPairTag | std::uint32_t{pair.sender} << 22 | std::uint32_t{pair.receiver} << 16 |
         pair.tag;
}

/// nullopt: a tag of all ranks.
constexpr std::optional<PairTag> pair_tag(std::uint32_t tag) {
  if (tag < kFirstPairTag || tag >= kEndOfPairTags) return std::nullopt;
  return PairTag{static_cast<Rank>(tag >> 22 & 63), static_cast<Rank>(tag >> 16 & 63),
                 static_cast<std::uint16_t>(tag)};
}

/// The ranks that take part in operations of `tag`. Bit r: rank r.
constexpr std::uint64_t ranks_of_tag(std::uint32_t tag) {
  const std::optional<PairTag> pair = pair_tag(tag);
  return pair ? bit(pair->sender) | bit(pair->receiver) : ~std::uint64_t{0};
}

}  // namespace tarpon
