// How the slots of a message are spread over flows, which may overtake one another: by stripes,
// flow after flow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bpf/wire.h"

namespace tarpon {

/// Slots in a stripe. A stripe is a train, and shorter than trains may be: flows are for networks
/// that limit each of them, by buckets that a train of 64 KiB may empty alone. With 64 KiB buckets
/// of 200 Mb/s four flows carried 3.3 times as much as one; in stripes of 44 packets 2.2 times.
/// Follows from the size of the slots, so that both sides know it.
constexpr std::uint32_t stripe_slots(std::uint32_t slot_bytes) {
  constexpr std::uint32_t kMostBytes = 65507;  // of a UDP datagram, and so of a train
  constexpr std::uint32_t kMostPackets = 16;   // as a paced grant
  return std::clamp(kMostBytes / (slot_bytes + TARPON_HEADER_BYTES), 1u, kMostPackets);
}

struct Stripes {
  std::uint32_t length = 1;  // slots
  std::uint32_t flows = 1;   // a power of two, at most TARPON_MAX_FLOWS

  std::uint32_t flow_of(std::uint32_t slot) const {
    return flows == 1 ? 0 : slot / length & (flows - 1);
  }

  /// How many slots from `slot` on travel in its flow before another flow has its turn.
  std::uint32_t rest(std::uint32_t slot) const {
    return flows == 1 ? ~slot : length - slot % length;
  }

  /// How many slots of `flow` are below `slot`.
  std::uint32_t below(std::uint32_t flow, std::uint32_t slot) const {
    if (flows == 1) return slot;
    const std::uint32_t round = length * flows;
    const std::uint32_t rest = slot % round;
    const std::uint32_t first = flow * length;
    return slot / round * length + std::clamp(rest, first, first + length) - first;
  }
};

}  // namespace tarpon
