// How many bytes may be on their way to a receiver: what the queues before it hold, found by
// growing until something is lost.
//
// Not thread-safe. No clock inside.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/endpoint/inflow_share.h"

namespace tarpon {

/// What happened in some time: the packets that were to come within credit.
struct InflowInterval {
  double loss = 0;              // share of packets
  double excess = 0;            // of it, what the link does not lose by itself
  double bytes_per_second = 0;  // delivered
  double best = 0;              // the same, the most of the latest intervals
  double round_trip = 0;        // seconds, mean; 0: none was seen
  double wait = 0;              // of it, in queues
  double least_wait = 0;        // that of the shortest round trip
  bool queued = false;          // packets waited before a link
  bool steady = false;          // senders kept the window in use, from beginning to end
};

class InflowWindow {
 public:
  /// Bytes, all of them.
  InflowWindow(std::uint64_t first, std::uint64_t least, std::uint64_t most);

  /// Varied a little, so that what is delivered tells whose the link is.
  std::uint64_t bytes() const {
    if (starting_) return bytes_;
    return std::max(least_,
                    static_cast<std::uint64_t>(static_cast<double>(bytes_) * share_.factor()));
  }

  /// Whether it can hardly become smaller.
  bool least() const { return bytes_ <= 2 * least_; }

  /// Whether others seem to use the link: packets wait, and either what is delivered
  /// follows the window, or more waits than is ours.
  bool crowded() const { return crowded_; }

  /// After each interval, before the two below.
  void look_for_others(const InflowInterval& interval);

  /// Nothing was lost in it that need not be.
  void grow(const InflowInterval& interval);

  /// Something was.
  void shrink(const InflowInterval& interval);

  /// What is ahead may be another link: it doubles until something is lost, as at first.
  void start_again() { starting_ = true; }

  /// Losses go on, and credit is paced: what the window was says nothing.
  void overflowed();

 private:
  void make_smaller(double smaller);

  const std::uint64_t least_, most_;
  std::uint64_t bytes_;
  bool starting_ = true;               // it doubles until something is lost
  std::uint64_t overflowed_at_ = 0;    // what it was when that happened last
  std::uint32_t since_overflow_ = 0;   // clean intervals
  double held_ = 0;                    // bytes: the most that a queue took without loss
  std::uint32_t severe_in_a_row_ = 0;  // intervals
  bool crowded_ = false;
  InflowShare share_;
  LatelyFastest fastest_;
};

}  // namespace tarpon
