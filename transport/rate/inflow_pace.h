// How fast credit is given where nothing queues: a policer drops what is faster than its rate,
// whatever the window.
//
// The rate is cut to what was delivered and probed upwards. A rate below what the policer lets
// through cannot be too fast: losses at such a rate are the link's own.
//
// Not thread-safe.
#pragma once

#include <cstdint>

#include "transport/time.h"

namespace tarpon {

class InflowPace {
 public:
  bool on() const { return bytes_per_second_ > 0; }
  double bytes_per_second() const { return bytes_per_second_; }  // 0: off

  /// Begins to pace. `delivered`: the best rate delivered, bytes a second; `loss`: the share of
  /// packets lost meanwhile.
  void begin(double delivered, double loss);
  void end() { bytes_per_second_ = 0; }

  /// Cuts the rate after an interval that lost the share `loss`. True: the loss is the link's own,
  /// and the pace has ended.
  bool slow_down(double loss);

  /// Raises the rate after an interval that lost nothing. `delivered`: bytes a second.
  void speed_up(double delivered);

  /// When the next grant may be given.
  Time next_grant() const { return next_grant_; }
  void granted(Time now, std::uint64_t bytes);

 private:
  double bytes_per_second_ = 0;
  double begun_at_ = 0;       // bytes a second
  double loss_before_ = 0;    // when it began
  double ceiling_ = 0;        // bytes a second that dropped packets lately; 0: unknown
  std::uint32_t clean_ = 0;   // intervals in a row
  std::uint32_t unused_ = 0;  // intervals in a row in which the pace did not limit anything
  Time next_grant_{};
};

}  // namespace tarpon
