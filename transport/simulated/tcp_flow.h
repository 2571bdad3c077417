// A bulk TCP flow, driven by the fates of its packets: slow start, then a window that grows with
// each round trip and falls once for each round trip with losses.
//
// Growth by 0.53 packets a round trip and 0.7 after a loss: CUBIC in its TCP-friendly region
// (RFC 9438, 4.3), which is where flows with short round trips live. A loss is known as soon as a
// later packet would have told it: SACK without timeouts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "transport/time.h"

namespace tarpon {

/// Single-threaded. Packets are numbered from 0 and end in order.
class TcpFlow {
 public:
  /// How many packets go out now, at once: none, or, as with segmentation offload, at least a third
  /// of the window or 64 KiB.
  std::uint64_t may_send() const {
    const double room = window_ - static_cast<double>(sent_.size());
    return room < std::min(kTrain, window_ / 3) ? 0 : static_cast<std::uint64_t>(room);
  }

  /// Sends a packet. Returns its number.
  std::uint64_t send(Time now) {
    sent_.push_back(now);
    return next_++;
  }

  void acknowledged(Time now) {
    round_trip_ = now - sent_.front();
    sent_.pop_front();
    window_ += window_ < threshold_ ? 1 : 0.53 / window_;
  }

  void lost(std::uint64_t number) {
    sent_.pop_front();
    if (number < recovered_at_) return;
    recovered_at_ = next_;
    threshold_ = window_ = std::max(2.0, 0.7 * window_);
  }

  double window() const { return window_; }  // packets
  Duration round_trip() const { return round_trip_; }

 private:
  static constexpr double kTrain = 44;
  double window_ = 10, threshold_ = 1e9;
  std::uint64_t next_ = 0;
  std::uint64_t recovered_at_ = 0;  // losses of lower numbers have been answered
  std::deque<Time> sent_;           // of packets on their way
  Duration round_trip_ = 1ms;
};

}  // namespace tarpon
