// How much may be on its way to this rank, and how fast credit for it is given.
//
// The receiver controls: it alone sees loss, delivery and delay of all its senders together, which
// is where incast hurts. Credit is its only lever, and credit rides on packets that are sent
// anyway.
//
// A window over all senders answers links that queue: it shrinks when an interval lost more than
// the link loses by itself, or when even its fastest round trip waited in a queue, and grows
// otherwise. Where a smaller window changes nothing (a policer: nothing queues, what is too fast is
// dropped) credit is paced at the rate that is delivered, and probes above it. Loss that no change
// of ours affects is the link's own; only loss beyond it counts. A rate below what was delivered
// cannot be too fast, so losses at such a rate are the link's own too. Slots that senders send
// unasked, at the start of messages, come all at once. Their losses say nothing about rates; they
// limit how many slots senders may send unasked.
//
// After the incast window of OptiReduce (+1 after a clean round, halved after loss) and TIMELY's
// thresholds on the round trip, here learnt from the smallest one seen.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/endpoint.h"
#include "transport/endpoint/inflow_pace.h"
#include "transport/endpoint/inflow_window.h"
#include "transport/time.h"

namespace tarpon {

struct InflowOptions {
  std::uint64_t most_bytes = 0;   // of the window: what receive buffers hold
  std::uint64_t least_bytes = 0;  // of the window
  InflowRule rule = InflowRule::window;
  std::uint32_t most_senders = 15;  // InflowRule::incast: of this rank
};

class Inflow {
 public:
  explicit Inflow(const InflowOptions& options);

  InflowRule rule() const { return options_.rule; }

  /// Datagram bytes that may be on their way here, over all senders. After a rest others may have
  /// filled a queue: then the window begins at a quarter, or at the little that most queues hold,
  /// and grows by two bytes with each byte that arrives.
  std::uint64_t window() const {
    const std::uint64_t first = std::max(kAfterRest, window_.bytes() / 4);
    return std::min(window_.bytes(), first + 2 * since_rest_);
  }

  /// Our value in header field `incast_codec`: how many ranks may send at once
  /// (InflowRule::incast), or which share of the initial credit may be used unasked
  /// (unasked_slots()). 0: no limit.
  std::uint32_t advertised() const { return advertised_; }

  /// Slots of each message that a sender may send unasked, when its receiver advertises
  /// `advertised`.
  static std::uint32_t unasked_slots(std::uint32_t advertised, std::uint32_t initial_credit) {
    return advertised == 0 ? initial_credit : std::min(initial_credit, 2 * advertised + 2);
  }

  // -- what happened; cheap, once a packet ------------------------------------------------------

  /// A packet arrived. `unasked`: it was sent without our credit.
  void arrived(std::uint64_t bytes, bool unasked) {
    ++(unasked ? burst_ : paid_).delivered;
    delivered_bytes_ += bytes;
    since_rest_ += bytes;
  }
  /// A later slot overtook others of its message: `slots` within credit, `unasked` sent unasked.
  void overtaken(std::uint32_t slots, std::uint32_t unasked) {
    paid_.lost += slots;
    burst_.lost += unasked;
  }
  /// A slot that was counted as lost came after all, without a request for it.
  void found(bool unasked) { --(unasked ? burst_ : paid_).lost; }
  void round_trip(Duration rtt) {
    if (rtt < base_) base_ = rtt;
    round_trips_ += rtt;
    shortest_ = std::min(shortest_, rtt);
    ++round_trip_count_;
    // As RFC 6298.
    const Duration off = rtt - usual_;
    usual_ += off / 8;
    deviation_ += (std::max(off, -off) - deviation_) / 4;
  }
  /// The longest time that a round trip may take: what takes longer is lost. RFC 6298's timeout,
  /// without its floor.
  Duration timeout() const { return usual_ + 4 * deviation_; }
  /// Call it after a batch. Judges the interval once enough has happened in it.
  void judge(Time now);

  /// A sender uses another number of flows: what the pace and losses told about the links no longer
  /// holds.
  void flows_changed();

  /// Nothing is expected any more: the time until the next batch says nothing about rates.
  void rest(Time now);

  // -- pacing -----------------------------------------------------------------------------------

  /// Off: grants are limited by the window alone.
  const InflowPace& pace() const { return pace_; }

  /// Credit for `bytes` was given.
  void granted(Time now, std::uint64_t bytes) { pace_.granted(now, bytes); }

  double own_loss() const { return own_loss_; }       // of the link, share of packets
  Duration base_round_trip() const { return base_; }  // Duration::max(): none yet

 private:
  static constexpr std::uint64_t kAfterRest = 64 << 10;

  struct Counted {
    std::uint64_t delivered = 0;  // packets
    std::int64_t lost = 0;        // below 0: slots lost in the interval before came after all
    std::uint64_t seen() const;
    double loss() const;
  };

  void count_senders();
  void judge_burst();
  void judge_paid(double seconds);
  InflowInterval interval(double seconds);
  void slow_down(const InflowInterval& interval);
  void speed_up(const InflowInterval& interval);

  const InflowOptions options_;
  InflowWindow window_;
  InflowPace pace_;
  std::uint32_t advertised_;

  // The interval in hand.
  bool busy_ = false;
  bool rested_ = false;  // in it, or so shortly before that the window was not in use
  Time busy_since_{};
  Duration busy_before_{};
  Counted paid_;   // within credit
  Counted burst_;  // unasked, at the start of messages
  std::uint64_t delivered_bytes_ = 0;
  std::uint64_t since_rest_ = 0;         // bytes delivered
  Duration round_trips_{};               // their sum
  Duration shortest_ = Duration::max();  // of them
  std::uint32_t round_trip_count_ = 0;

  double too_many_ = 0;                // packets lost beyond what was expected, lately
  std::uint32_t too_much_ = 0;         // what was advertised when its burst lost packets last
  std::uint32_t clean_starts_ = 0;     // samples in a row, one step below `too_much_`
  std::uint32_t lossy_intervals_ = 0;  // in a row
  double own_loss_ = 0;
  Duration base_ = Duration::max();
  Duration usual_ = 10ms;  // smoothed round trip; long until it is known
  Duration deviation_ = 5ms;
  // Delivered in the latest intervals, bytes a second. The best one counts, since pauses of either
  // end make the others too low.
  std::array<double, 8> rates_{};
  std::size_t next_rate_ = 0;
};

}  // namespace tarpon
