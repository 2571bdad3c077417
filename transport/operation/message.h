// One message of a stage, seen from its sender and from its receiver.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/endpoint.h"
#include "transport/operation/presence.h"
#include "transport/rate/stripes.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

inline std::uint32_t slot_count(std::uint64_t bytes, std::uint32_t slot_bytes) {
  return static_cast<std::uint32_t>((bytes + slot_bytes - 1) / slot_bytes);
}

/// How many slots a message has, and how long each one is.
class SlotLengths {
 public:
  /// `ranges`: as in SendSpec. Keeps its memory.
  void assign(std::uint64_t bytes, std::span<const std::uint64_t> ranges, std::uint32_t slot_bytes);

  std::uint32_t slots() const { return slots_; }

  /// Bytes of `slot` < slots().
  std::uint32_t of(std::uint32_t slot) const {
    if (slot + 1 == slots_) return last_bytes_;
    return short_.empty() ? slot_bytes_ : inner(slot);
  }

  /// Bytes of all slots for which `counts(slot)` holds, of which there are `number`.
  template <typename Counts>
  std::uint64_t sum(std::uint32_t number, Counts counts) const {
    std::uint64_t bytes = std::uint64_t{number} * slot_bytes_;
    for (const ShortSlot& one : short_) {
      if (counts(one.slot)) bytes -= slot_bytes_ - one.bytes;
    }
    if (slots_ > 0 && counts(slots_ - 1)) bytes -= slot_bytes_ - last_bytes_;
    return bytes;
  }

 private:
  struct ShortSlot {
    std::uint32_t slot = 0;
    std::uint32_t bytes = 0;
  };
  std::uint32_t inner(std::uint32_t slot) const;

  std::uint32_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0;
  std::uint32_t last_bytes_ = 0;
  std::vector<ShortSlot> short_;  // without the last slot; in order
};

struct SendMessage {
  Rank peer = 0;
  Source* source = nullptr;
  std::uint32_t slots = 0;
  SlotLengths lengths;
  std::uint32_t ready = 0;     // slots [0, ready) may go out, as far as the caller knows
  std::uint32_t next = 0;      // first slot never sent
  std::uint32_t grant = 0;     // slots [0, grant) may be sent
  bool done = false;           // confirmed, or no longer wanted
  Stripes stripes;             // over which of our flows
  std::uint32_t requests = 0;  // REPAIRs of the receiver
  std::uint32_t repair_count = 0;
  std::array<tarpon_range, kMaxRepairRanges> repairs;  // the receiver's latest request
};

/// What this rank has received of a message in one of its flows.
struct FlowProgress {
  std::uint32_t end = 0;    // one above the flow's highest slot that is here
  std::uint32_t count = 0;  // slots of the flow that are here
  /// Missing slots below this one are lost: something sent after them has arrived. What is missing
  /// above may still be on its way, or wait in our own socket buffer.
  std::uint32_t lost_below = 0;
  std::uint32_t gap_below = 0;  // the same, as it was when gap_since was set
};

using FlowsProgress = std::array<FlowProgress, TARPON_MAX_FLOWS>;

struct ReceiveMessage {
  Rank peer = 0;
  Sink* sink = nullptr;
  std::uint32_t slots = 0;
  SlotLengths lengths;
  Presence presence;
  std::uint32_t granted = 0;       // slots [0, granted) the sender may send, as last told
  std::uint32_t repair_below = 0;  // slots [0, repair_below) may be asked for again
  std::uint32_t asked_for = 0;     // slots of the last REPAIR that have not come
  std::uint32_t written_off = 0;   // slots [0, written_off) hold no credit any more
  bool tail_seen = false;          // its last packets have come: the sender has sent it all
  bool final = false;              // the sender has passed this operation: nothing more comes
  Stripes stripes;                 // as its first DATA says
  bool flows_known = false;        // the first DATA has come
  std::uint8_t gaps = 0;           // bit f: flow f lacks something below its end
  FlowsProgress flows;
  Time last_heard{};
  Time gap_since = kNever;  // when a loss became certain
  std::uint32_t given_up =
      0;  // slots marked present that never came: not asked for, not waited for
  bool last_given_up = false;  // the last slot, which may be short, is one of those
  Time asked{};                // last REPAIR
  std::uint32_t granted_when_asked = 0;
  std::uint32_t asks = 0;  // REPAIRs since the last progress

  /// One above the highest slot that is here of the flow that `slot` travels in.
  std::uint32_t end_of_flow(std::uint32_t slot) const { return flows[stripes.flow_of(slot)].end; }

  /// Number of slots below `limit` that `slot` overtakes when it comes: missing ones of its flow
  /// before it, after all that are here.
  std::uint32_t overtaken_by(std::uint32_t slot, std::uint32_t limit) const {
    const std::uint32_t flow = stripes.flow_of(slot);
    const std::uint32_t end = flows[flow].end;
    if (slot <= end) return 0;
    const std::uint32_t until = std::clamp(limit, end, slot);
    return stripes.below(flow, until) - stripes.below(flow, end);
  }

  /// Marks `count` slots from `first` on as here, or as if they were. REQUIRES: none is marked yet,
  /// and all travel in one flow.
  void insert(std::uint32_t first, std::uint32_t count) {
    presence.insert(first, count);
    const std::uint32_t number = stripes.flow_of(first);
    FlowProgress& flow = flows[number];
    flow.end = std::max(flow.end, first + count);
    flow.count += count;
    const bool gap = flow.count < stripes.below(number, flow.end);
    const auto bit = static_cast<std::uint8_t>(1u << number);
    gaps = static_cast<std::uint8_t>(gap ? gaps | bit : gaps & ~bit);
  }

  /// Counts the missing slots of `flow` below `below` as lost.
  void presume_lost(std::uint32_t flow, std::uint32_t below, Time now);

  /// Counts the missing slots of all flows as lost.
  void presume_all_lost(Time now);

  /// Counts missing slots below the end of their flow as lost.
  void presume_overtaken_lost(Time now);

  /// Writes runs of missing slots, as Presence::missing(): lost() those below `limit` that are
  /// lost, lost_at_gap() those known to be lost since gap_since.
  std::size_t lost(std::uint32_t limit, std::uint32_t most_slots,
                   std::span<tarpon_range> out) const;
  std::size_t lost_at_gap(std::uint32_t most_slots, std::span<tarpon_range> out) const;
  /// The same for what lost() writes and the first missing slot below `limit` of each flow.
  std::size_t lost_or_first(std::uint32_t limit, std::uint32_t most_slots,
                            std::span<tarpon_range> out) const;

  /// Writes the first missing slot below `limit` of each flow; returns their number.
  std::size_t first_missing(std::uint32_t limit, std::span<tarpon_range> out) const;

  /// Whether everything that the sender may send is here: there is nothing to ask for.
  bool waits_for_credit() const {
    return granted < slots && presence.count() >= granted && !presence.has_gap();
  }

  /// Whether nothing more has to come.
  bool delivered() const { return presence.complete(); }

 private:
  std::size_t missing(const FlowsProgress& of_flows, std::uint32_t FlowProgress::*below,
                      std::uint32_t limit, std::uint32_t most_slots,
                      std::span<tarpon_range> out) const;
};

}  // namespace tarpon
