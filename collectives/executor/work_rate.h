// How long the work on the buffers of a call takes: learnt from the calls before it.
//
// The work is settling and copying a shard, decoding and filling; its time is that in which pieces
// of it ran, whatever the driver did between them. No clock. Not thread-safe.
#pragma once

#include <cmath>
#include <cstdint>

#include "collectives/learning/recent_values.h"
#include "transport/time.h"

namespace tarpon {

class WorkRate {
 public:
  /// Pieces of a call that moved `bytes` took `time`. REQUIRES: bytes > 0.
  void learn(std::uint64_t bytes, Duration time) {
    samples_.push(std::chrono::duration<double>(time).count() / static_cast<double>(bytes));
  }

  /// What work that moves `bytes` takes: by the 90th percentile of the last 20 calls, per byte.
  Duration of(std::uint64_t bytes) const {
    const double each = samples_.empty() ? kUnknown : samples_.quantile(0.9);
    return Duration(std::llround(each * static_cast<double>(bytes) * 1e9));
  }

 private:
  // Seconds per byte: a copy into pages that are touched for the first time.
  static constexpr double kUnknown = 1 / 3e9;

  RecentValues samples_{20};  // seconds per byte
};

}  // namespace tarpon
