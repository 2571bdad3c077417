// A message of a stage, seen from its sender: which slots have left, which may leave, and which the
// receiver has asked for again.
//
// Only its functions change it. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "transport/operation/message/slot_lengths.h"
#include "transport/operation_spec.h"
#include "transport/rate/stripes.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

class SendMessage {
 public:
  /// Begins anew, reusing its memory. `ready`: slots that may leave, as StageSpec::ready.
  void reset(const SendSpec& spec, std::uint32_t slot_bytes, std::uint32_t ready) {
    peer_ = spec.peer;
    source_ = spec.source;
    lengths_.assign(spec.bytes, spec.ranges, slot_bytes);
    ready_ = std::min(ready, spec.ready);
    next_ = 0;
    grant_ = 0;
    done_ = slots() == 0;
    stripes_ = {};
    requests_ = 0;
    repair_count_ = 0;
  }

  Rank peer() const { return peer_; }
  Source& source() const { return *source_; }
  std::uint32_t slots() const { return lengths_.slots(); }
  const SlotLengths& lengths() const { return lengths_; }
  /// Over which of this rank's flows it goes.
  const Stripes& stripes() const { return stripes_; }
  void set_stripes(const Stripes& stripes) { stripes_ = stripes; }

  /// Whether the receiver needs nothing more: it has confirmed the message, or is gone.
  bool is_done() const { return done_; }
  /// Returns false when it was done.
  bool finish() { return !std::exchange(done_, true); }

  // -- slots that leave for the first time -------------------------------------------------------

  /// The first slot that has never left.
  std::uint32_t next() const { return next_; }
  bool has_all_left() const { return next_ == slots(); }
  /// Slots [0, next) have left.
  void set_next(std::uint32_t next) { next_ = next; }
  /// Slots [0, ready) may leave, as far as the caller knows.
  void advance(std::uint32_t ready) { ready_ = std::max(ready_, ready); }
  /// Slots [0, slots) may be sent, as far as the receiver has said.
  void grant(std::uint32_t slots) { grant_ = std::max(grant_, slots); }
  bool has_credit() const { return next_ < grant_; }
  bool is_ready() const { return ready_ > 0; }
  /// The end of the slots that are ready and granted.
  std::uint32_t sendable() const { return std::min({ready_, grant_, slots()}); }
  /// The last 1 % of a message, at least one slot, carries the tail mark: the first of those slots.
  std::uint32_t first_tail_slot() const { return slots() - std::max(1u, slots() / 100); }

  // -- slots that leave again --------------------------------------------------------------------

  /// Takes a REPAIR, which replaces the one before. Slots that have never left need no repair.
  void take_request(const ControlPacket& packet) {
    repair_count_ = packet.ranges(next_, repairs_);
    ++requests_;
  }
  bool has_repairs() const { return repair_count_ > 0; }
  /// The run of slots that is to leave next. REQUIRES: has_repairs().
  const tarpon_range& next_repair() const { return repairs_[repair_count_ - 1]; }
  /// The first `count` slots of next_repair() have left.
  void repaired(std::uint32_t count) {
    tarpon_range& range = repairs_[repair_count_ - 1];
    range.first += count;
    range.count -= count;
    if (range.count == 0) --repair_count_;
  }
  /// The flow of a slot that is sent again: that of the slot after the first request, then the
  /// others in turn, since a flow may be dead.
  std::uint8_t repair_flow(std::uint32_t slot) const {
    const std::uint32_t flow = stripes_.flow_of(slot) + requests_ - 1;
    return static_cast<std::uint8_t>(flow & (stripes_.flows - 1));
  }

 private:
  Rank peer_ = 0;
  Source* source_ = nullptr;
  SlotLengths lengths_;
  Stripes stripes_;
  std::uint32_t ready_ = 0;
  std::uint32_t next_ = 0;
  std::uint32_t grant_ = 0;
  bool done_ = false;
  std::uint32_t requests_ = 0;
  std::uint32_t repair_count_ = 0;
  std::array<tarpon_range, kMaxRepairRanges> repairs_;
};

}  // namespace tarpon
