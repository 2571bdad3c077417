// How many bytes may be on their way to a receiver: what the queues before it hold, found by
// growing until something is lost.
//
// Not thread-safe. No clock inside.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/rate/inflow_share.h"

namespace tarpon {

/// What happened in an interval to the packets that were sent within credit.
struct InflowInterval {
  double loss = 0;              // share of packets
  double excess = 0;            // part of `loss` that the link does not lose by itself
  double bytes_per_second = 0;  // delivered
  double best = 0;              // the same, the highest of the latest intervals
  double round_trip = 0;        // seconds, mean; 0: none was seen
  double wait = 0;              // part of `round_trip` in queues
  double least_wait = 0;        // that of the shortest round trip
  bool queued = false;          // packets waited before a link
  bool steady = false;          // senders kept the window in use, from beginning to end
};

class InflowWindow {
 public:
  /// All arguments are in bytes.
  InflowWindow(std::uint64_t first, std::uint64_t least, std::uint64_t most);

  /// The window, varied a little, so that the delivered rate tells our share of the link.
  std::uint64_t bytes() const {
    if (starting_) return bytes_;
    return std::max(least_,
                    static_cast<std::uint64_t>(static_cast<double>(bytes_) * share_.factor()));
  }

  /// Whether the window can hardly become smaller.
  bool least() const { return bytes_ <= 2 * least_; }

  /// Whether others seem to use the link: packets wait, and either the delivered rate follows the
  /// window, or more bytes wait than ours. Others that stayed are expected to come back: for 32
  /// intervals a lower rate shows that they have.
  bool crowded() const { return crowded_; }

  /// Call it after each interval, before grow() or shrink().
  void look_for_others(const InflowInterval& interval);

  /// Judges an interval without needless loss. The window doubles until the first loss. Later it
  /// grows by 1/16; by 1/1024 above 90 % of where it overflowed; by 1/4 where others fill the
  /// queue, up to 1.5 times all that waits. It shrinks to 0.9 when round trips take more than 4 ms,
  /// and by four times the loss when a little is lost in a queue above these 90 %.
  void grow(const InflowInterval& interval);

  /// Shrinks the window after an interval with needless loss: to 0.8 of the share that arrived, or
  /// to that share where others fill the queue, never below 0.3 of the window. The window stays
  /// above 0.9 of what a queue held without loss, except after three losses above 2 % in a row.
  void shrink(const InflowInterval& interval);

  /// Makes the window double until something is lost, as at first: the link may be another one now.
  void start_again() { starting_ = true; }

  /// Notes that something was lost at the present size, which stays: the window no longer doubles.
  void overflowed();

 private:
  void make_smaller(double smaller);

  const std::uint64_t least_, most_;
  std::uint64_t bytes_;
  bool starting_ = true;               // it doubles until something is lost
  std::uint64_t overflowed_at_ = 0;    // the window when something was lost last
  std::uint32_t since_overflow_ = 0;   // clean intervals
  double held_ = 0;                    // bytes: the most that a queue took without loss
  std::uint32_t severe_in_a_row_ = 0;  // intervals
  bool crowded_ = false;
  std::uint32_t more_in_a_row_ = 0;  // intervals in which more bytes waited than ours
  std::uint32_t expected_for_ = 0;   // intervals in which others are expected to come back
  InflowShare share_;
  LatelyFastest fastest_;
};

}  // namespace tarpon
