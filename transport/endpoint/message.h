// One message of a stage, seen from its sender and from its receiver.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "transport/endpoint.h"
#include "transport/endpoint/presence.h"

namespace tarpon {

inline std::uint32_t slot_count(std::uint64_t bytes, std::uint32_t slot_bytes) {
  return static_cast<std::uint32_t>((bytes + slot_bytes - 1) / slot_bytes);
}

/// Bytes of the last slot of a message; 0 for an empty message.
inline std::uint32_t last_slot_bytes(std::uint64_t bytes, std::uint32_t slot_bytes) {
  if (bytes == 0) return 0;
  return static_cast<std::uint32_t>(bytes -
                                    std::uint64_t{slot_count(bytes, slot_bytes) - 1} * slot_bytes);
}

/// Ranges that one REPAIR packet can ask for.
inline constexpr std::size_t kMaxRepairRanges = 64;

struct SendMessage {
  Rank peer = 0;
  Source* source = nullptr;
  std::uint32_t slots = 0;
  std::uint32_t last_bytes = 0;
  std::uint32_t next = 0;   // first slot never sent
  std::uint32_t grant = 0;  // slots [0, grant) may be sent
  bool done = false;        // confirmed, or nobody wants it any more
  std::uint32_t repair_count = 0;
  std::array<tarpon_range, kMaxRepairRanges> repairs;  // the receiver's latest request

  std::uint32_t length(std::uint32_t slot, std::uint32_t slot_bytes) const {
    return slot + 1 == slots ? last_bytes : slot_bytes;
  }
};

struct ReceiveMessage {
  Rank peer = 0;
  Sink* sink = nullptr;
  std::uint32_t slots = 0;
  std::uint32_t last_bytes = 0;
  Presence presence;
  std::vector<std::uint32_t> parked;  // ordered stages: cell of slot s, or ParkingLot::kNone
  std::uint32_t parked_count = 0;
  std::uint32_t granted = 0;       // slots [0, granted) the sender may send, as last told
  std::uint32_t repair_below = 0;  // slots [0, repair_below) may be asked for again
  std::uint32_t written_off = 0;   // slots below hold no credit any more
  bool grant_due = false;          // the batch in hand may have earned the sender more
  bool final = false;              // the sender has passed this operation: nothing more comes
  /// Missing slots below this one are lost: something sent after them has arrived. What is missing
  /// above may still be on its way, or wait in our own socket buffer.
  std::uint32_t lost_below = 0;
  Time last_heard{};
  Time gap_since = kNever;  // when a loss became certain
  Time asked{};             // last REPAIR
  std::uint32_t asks = 0;   // REPAIRs since the last progress

  /// The whole of what may be asked for is presumed lost.
  void presume_lost(std::uint32_t below, Time now) {
    lost_below = std::max(lost_below, std::min(below, slots));
    if (gap_since == kNever) gap_since = now;
  }

  bool delivered() const { return presence.complete() && parked_count == 0; }

  std::uint32_t length(std::uint32_t slot, std::uint32_t slot_bytes) const {
    return slot + 1 == slots ? last_bytes : slot_bytes;
  }
};

}  // namespace tarpon
