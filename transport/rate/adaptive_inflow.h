// InflowRule::window: a window over all senders, and a pace where the window has no effect.
//
// The window answers links that queue: it shrinks when an interval lost more than the link loses by
// itself, or when even its fastest round trip waited in a queue, and grows otherwise. Where a
// smaller window changes nothing (a policer: nothing queues, what is too fast is dropped) credit is
// paced at the rate that is delivered, and probes above it. Loss that no change of ours affects is
// the link's own; only loss beyond it counts. A rate below what was delivered cannot be too fast,
// so losses at such a rate are the link's own too.
//
// An interval is lossy if more than 8 packets were lost beyond the link's own loss, three standard
// deviations of it, and 2 % of the packets. In place of 2 % stands 0.5 % where round trips show a
// queue or credit is paced, and 25 % where others fill the queue. Round trips show a queue if their
// mean is above twice the smallest one plus 50 us.
//
// Siblings share the first window. They give way to one another as this rule does, so the rule does
// not look for others in their queue, and accepts no loss for a share of the link.
//
// Slots that senders send unasked, at the start of messages, come all at once. Their losses say
// nothing about rates; they limit how many slots senders may send unasked. Header field
// `incast_codec` carries that limit.
//
// After the incast window of OptiReduce (+1 after a clean round, halved after loss) and TIMELY's
// thresholds on the round trip, here learnt from the smallest one seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/rate/inflow.h"
#include "transport/rate/inflow_pace.h"
#include "transport/rate/inflow_window.h"
#include "transport/time.h"

namespace tarpon {

class AdaptiveInflow final : public Inflow {
 public:
  /// Limits of the window, in bytes. `most`: what receive buffers hold.
  /// `siblings`: receivers that share this link and run the same rule, this one included.
  AdaptiveInflow(std::uint64_t least, std::uint64_t most, std::uint32_t siblings = 1);

  void flows_changed() override;

  std::uint32_t advertised() const override { return advertised_; }
  std::uint32_t unasked_slots(std::uint32_t advertised,
                              std::uint32_t initial_credit) const override;

  bool paced() const override { return pace_.on(); }
  Time next_grant() const override { return pace_.next_grant(); }
  void granted(Time now, std::uint64_t bytes) override { pace_.granted(now, bytes); }

  const InflowPace& pace() const { return pace_; }
  double own_loss() const { return own_loss_; }  // of the link, share of packets

 private:
  std::uint64_t steady_window() const override { return window_.bytes(); }
  void judge_interval(const InflowCounts& counts) override;
  void judge_unasked();
  void judge_credited(const InflowCounts& counts);
  InflowInterval interval(const InflowCounts& counts);
  void slow_down(const InflowInterval& interval);
  void speed_up(const InflowInterval& interval);

  const std::uint32_t siblings_;
  InflowWindow window_;
  InflowPace pace_;
  std::uint32_t advertised_ = 0;
  PacketCount unasked_;                // since they were judged last
  std::uint32_t too_much_ = 0;         // what was advertised when unasked slots were lost last
  std::uint32_t clean_starts_ = 0;     // samples in a row, one step below `too_much_`
  double too_many_ = 0;                // packets lost beyond what was expected, lately
  std::uint32_t lossy_intervals_ = 0;  // in a row
  double own_loss_ = 0;
  Duration base_ = Duration::max();  // the shortest round trip
  // Delivered in the latest intervals, bytes a second. The best one counts, since pauses of either
  // end make the others too low.
  std::array<double, 8> rates_{};
  std::size_t next_rate_ = 0;
};

}  // namespace tarpon
