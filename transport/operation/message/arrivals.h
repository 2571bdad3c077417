// Which slots of a message have come, and which of the missing ones count as lost.
//
// A message travels in one flow or several (Stripes). In each of them order tells of losses: a
// missing slot counts as lost when a slot that was sent after it in the same flow has come. What is
// missing above may still be on its way, or wait in this rank's own socket buffer.
//
// Not thread-safe. No clock inside.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "bpf/wire.h"
#include "transport/operation/message/presence.h"
#include "transport/operation_spec.h"
#include "transport/rate/stripes.h"
#include "transport/time.h"

namespace tarpon {

class Arrivals {
 public:
  void reset(std::uint32_t slots);

  const Presence& presence() const { return presence_; }
  /// Over which flows the sender spreads the message: known from its first DATA on.
  const Stripes& stripes() const { return stripes_; }
  bool knows_stripes() const { return knows_stripes_; }
  void set_stripes(const Stripes& stripes) {
    stripes_ = stripes;
    knows_stripes_ = true;
  }

  /// Marks `count` slots from `first` on as here. REQUIRES: none is marked yet, and all travel in
  /// one flow.
  void insert(std::uint32_t first, std::uint32_t count);
  /// One above the highest slot that is here of the flow that `slot` travels in.
  std::uint32_t end_of_flow(std::uint32_t slot) const { return flows_[stripes_.flow_of(slot)].end; }
  /// Number of slots below `limit` that `slot` overtakes when it comes: missing ones of its flow
  /// before it, after all that are here.
  std::uint32_t overtaken_by(std::uint32_t slot, std::uint32_t limit) const {
    const std::uint32_t flow = stripes_.flow_of(slot);
    const std::uint32_t end = flows_[flow].end;
    if (slot <= end) return 0;
    const std::uint32_t until = std::clamp(limit, end, slot);
    return stripes_.below(flow, until) - stripes_.below(flow, end);
  }

  // -- losses ------------------------------------------------------------------------------------

  /// Since when slots that are missing count as lost; kNever: none does.
  Time gap_since() const { return gap_since_; }
  /// `slot` has come in the order of its flow: what the flow lacks before it is lost.
  void note_order(std::uint32_t slot, Time now);
  /// `slot` has come as the answer to a request. What its flow lacks below `below` is lost: it was
  /// sent before the request, and would have come before the answer.
  void note_repair(std::uint32_t slot, std::uint32_t below, Time now);
  /// Everything that is missing counts as lost.
  void presume_all_lost(Time now);
  /// Writes the runs of slots that are known to be lost since gap_since(), and marks them as here:
  /// they are waited for no longer. Returns how many runs fit.
  std::size_t take_gap(Time now, std::span<tarpon_range> out);

  // Each writes runs of missing slots below `limit`, as Presence::missing(), and returns how many.
  /// Those that are lost.
  std::size_t lost(std::uint32_t limit, std::uint32_t most_slots,
                   std::span<tarpon_range> out) const;
  /// Those that are lost, and the first missing one of each flow.
  std::size_t lost_or_first(std::uint32_t limit, std::uint32_t most_slots,
                            std::span<tarpon_range> out) const;
  /// The first missing one of each flow.
  std::size_t first_missing(std::uint32_t limit, std::span<tarpon_range> out) const;

 private:
  struct FlowProgress {
    std::uint32_t end = 0;         // one above the flow's highest slot that is here
    std::uint32_t count = 0;       // slots of the flow that are here
    std::uint32_t lost_below = 0;  // missing slots below this one are lost
    std::uint32_t gap_below = 0;   // the same, as it was when gap_since_ was set
  };
  using FlowsProgress = std::array<FlowProgress, TARPON_MAX_FLOWS>;

  bool has_gap(std::uint32_t flow) const { return (gaps_ >> flow & 1) != 0; }
  void presume_lost(std::uint32_t flow, std::uint32_t below, Time now);
  std::size_t missing(const FlowsProgress& of_flows, std::uint32_t FlowProgress::*below,
                      std::uint32_t limit, std::uint32_t most_slots,
                      std::span<tarpon_range> out) const;

  Presence presence_;
  Stripes stripes_;
  bool knows_stripes_ = false;
  std::uint8_t gaps_ = 0;  // bit f: flow f lacks something below its end
  FlowsProgress flows_;
  Time gap_since_ = kNever;
};

}  // namespace tarpon
