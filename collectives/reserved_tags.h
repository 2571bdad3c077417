// Tags that belong to the library. Programs may use every tag below kFirstReservedTag. The tags of
// messages (transport/pair_tag.h) begin there. The tags that this file names follow.
#pragma once

#include <cstdint>
#include <string>

#include "transport/pair_tag.h"

namespace tarpon {

inline constexpr std::uint32_t kFirstReservedTag = kFirstPairTag;

/// Tags below this one may have learnt shares. Their measurements are exchanged by operations of
/// tag kFirstExchangeTag + tag (collectives/driver/learnt_shares.h).
inline constexpr std::uint32_t kLearningTags = 64;
inline constexpr std::uint32_t kFirstExchangeTag = 0xffffff00;

inline constexpr std::uint32_t kBarrierTag = 0xffffffff;  // barriers, and Communicator::resync()

/// What the operations of a reserved tag are, for a text that ends with their number: "barrier",
/// "measurements of tag 5, exchange", "messages of tag 5 from rank 0 to rank 3, message". Empty for
/// other tags.
std::string reserved_name(std::uint32_t tag);

}  // namespace tarpon
