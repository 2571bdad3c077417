// A sender's rate to one peer, after TIMELY (SIGCOMM'15) with OptiReduce's constants (NSDI'25):
// additive steps below a low round trip, a cut that grows with the round trip above a high one, and
// the gradient in between. Both thresholds lie above the smallest round trip seen, since on virtual
// links that alone is far above the published 25 us.
#pragma once

#include "transport/time.h"

namespace tarpon {

class Timely {
 public:
  /// `line_rate`: bytes a second to start from, and never exceeded.
  explicit Timely(double line_rate) : line_rate_(line_rate), bytes_per_second_(line_rate) {}

  /// A round trip was measured. Acts on the smallest of ten of them: an echo answers a burst.
  void round_trip(Duration rtt);

  double bytes_per_second() const { return bytes_per_second_; }

 private:
  void update(Duration rtt);

  double line_rate_;
  double bytes_per_second_;
  Duration base_ = Duration::max();
  Duration best_ = Duration::max();  // of the echoes in hand
  int echoes_ = 0;
  double gradient_ = 0;
  Duration previous_{};
  int rises_ = 0;
};

}  // namespace tarpon
