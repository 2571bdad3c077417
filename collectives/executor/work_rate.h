// How long the work of a call takes once its last stage has closed: learnt from the calls before
// it.
//
// That is the copy for retention, decoding and filling: the time in which pieces of it ran,
// whatever the driver did between them. A call that needed no piece took no time. No clock. Not
// thread-safe.
#pragma once

#include <cmath>
#include <cstdint>

#include "collectives/learning/recent_values.h"
#include "transport/time.h"

namespace tarpon {

class WorkRate {
 public:
  /// A call of a bucket of `bytes` took `time`. REQUIRES: bytes > 0.
  void learn(std::uint64_t bytes, Duration time) {
    samples_.push(std::chrono::duration<double>(time).count() / static_cast<double>(bytes));
  }

  /// What a call of a bucket of `bytes` takes: by the 90th percentile of the last 20 calls, per
  /// byte. Zero while nothing is known.
  Duration of(std::uint64_t bytes) const {
    if (samples_.empty()) return Duration::zero();
    return Duration(std::llround(samples_.quantile(0.9) * static_cast<double>(bytes) * 1e9));
  }

 private:
  RecentValues samples_{20};  // seconds per byte
};

}  // namespace tarpon
