// How much may be on its way to this rank, and how fast credit for it is given.
//
// The receiver controls: it alone sees loss, delivery and delay of all its senders together, which
// is where incast hurts. Credit is its only lever, and credit rides on packets that are sent
// anyway.
//
// Inflow counts what happens to packets, in intervals, and estimates the round trip. A rule is a
// subclass, chosen once when the endpoint is made (rule_choice.h). It judges each interval, and
// answers how much may be on its way. It also says what the header field `incast_codec` means,
// since the ranks of a job have the same rule.
//
// Not thread-safe. No clock inside. Cost: a few additions a packet; the calls to the rule are one
// an interval, and a few a batch or packet train.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/time.h"

namespace tarpon {

/// Number of packets of one kind in an interval.
struct PacketCount {
  std::uint64_t delivered = 0;
  std::int64_t lost = 0;  // below 0: slots lost in the interval before came after all

  std::uint64_t seen() const {
    return delivered + static_cast<std::uint64_t>(std::max<std::int64_t>(0, lost));
  }
  /// Share of packets.
  double loss() const {
    return lost <= 0 ? 0 : static_cast<double>(lost) / static_cast<double>(seen());
  }
  void add(const PacketCount& other) {
    delivered += other.delivered;
    lost += other.lost;
  }
};

/// An interval: the time from one judgement to the next one.
struct InflowCounts {
  PacketCount credited;
  PacketCount unasked;  // sent without our credit, at the start of messages
  std::uint64_t delivered_bytes = 0;
  std::uint32_t round_trips = 0;
  Duration all_round_trips{};                      // their sum
  Duration shortest_round_trip = Duration::max();  // of the interval
  Duration busy{};                                 // time in which data was expected
  bool rested = false;  // in it, or so shortly before that the window was not in use
};

class Inflow {
 public:
  virtual ~Inflow() = default;

  /// Datagram bytes that may be on their way here, over all senders. After a rest others may have
  /// filled a queue: then the window begins at a quarter, or at the little that most queues hold,
  /// and grows by two bytes with each byte that arrives.
  std::uint64_t window() const {
    const std::uint64_t steady = steady_window();
    return std::min(steady, std::max(kAfterRest, steady / 4) + 2 * since_rest_);
  }

  // -- what happened; cheap, once a packet ------------------------------------------------------

  /// A packet arrived. `unasked`: it was sent without our credit.
  void arrived(std::uint64_t bytes, bool unasked) {
    ++(unasked ? counts_.unasked : counts_.credited).delivered;
    counts_.delivered_bytes += bytes;
    since_rest_ += bytes;
  }
  /// A later slot overtook others of its message: `slots` within credit, `unasked` sent unasked.
  void overtaken(std::uint32_t slots, std::uint32_t unasked) {
    counts_.credited.lost += slots;
    counts_.unasked.lost += unasked;
  }
  /// A slot that was counted as lost came after all, without a request for it.
  void found(bool unasked) { --(unasked ? counts_.unasked : counts_.credited).lost; }
  void round_trip(Duration rtt) {
    counts_.all_round_trips += rtt;
    counts_.shortest_round_trip = std::min(counts_.shortest_round_trip, rtt);
    ++counts_.round_trips;
    // As RFC 6298.
    const Duration off = rtt - usual_;
    usual_ += off / 8;
    deviation_ += (std::max(off, -off) - deviation_) / 4;
  }
  /// The longest time that a round trip may take: what takes longer is lost. RFC 6298's timeout,
  /// without its floor.
  Duration timeout() const { return usual_ + 4 * deviation_; }

  /// Call it after a batch. Ends the interval once enough has happened in it.
  void judge(Time now);

  /// Nothing is expected any more: the time until the next batch says nothing about rates.
  void rest(Time now);

  /// A sender uses another number of flows: what was learnt about the links no longer holds.
  virtual void flows_changed() {}

  // -- what senders are told --------------------------------------------------------------------

  /// Our value in header field `incast_codec`, below 16. 0: no limit.
  virtual std::uint32_t advertised() const { return 0; }

  /// Slots of each message that a sender may send unasked to a receiver that advertises
  /// `advertised`: at most `initial_credit`.
  virtual std::uint32_t unasked_slots(std::uint32_t advertised,
                                      std::uint32_t initial_credit) const {
    static_cast<void>(advertised);
    return initial_credit;
  }

  /// How many senders at once a receiver takes that advertises `advertised`; 0: all.
  virtual std::uint32_t senders_at_once(std::uint32_t advertised) const {
    static_cast<void>(advertised);
    return 0;
  }

  // -- pacing -----------------------------------------------------------------------------------

  /// Whether grants are spaced in time. If not, the window alone limits them.
  virtual bool paced() const { return false; }
  /// When the next grant may be given. REQUIRES: paced().
  virtual Time next_grant() const { return Time{}; }
  /// Credit for `bytes` was given.
  virtual void granted(Time now, std::uint64_t bytes) {
    static_cast<void>(now);
    static_cast<void>(bytes);
  }

 private:
  static constexpr std::uint64_t kAfterRest = 64 << 10;

  /// The window when there was no rest lately.
  virtual std::uint64_t steady_window() const = 0;
  virtual void judge_interval(const InflowCounts& counts) = 0;

  InflowCounts counts_;  // the interval in hand
  bool busy_ = false;
  Time busy_since_{};
  std::uint64_t since_rest_ = 0;  // bytes delivered
  Duration usual_ = 10ms;         // smoothed round trip; long until it is known
  Duration deviation_ = 5ms;
};

}  // namespace tarpon
