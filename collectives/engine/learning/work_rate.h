// How long the work on the buffers of a call takes: learnt from the calls before it.
//
// The work is settling and copying a shard, decoding and filling. Calls that were cut by their
// bound are learnt apart: all ranks of a host then work at the same time, and share its cores. No
// clock. Not thread-safe.
#pragma once

#include <cmath>
#include <cstdint>

#include "collectives/engine/learning/recent_values.h"
#include "transport/time.h"

namespace tarpon {

class WorkRate {
 public:
  /// Learns that the work of a call moved `bytes` in `time`: the time in which its pieces ran; for
  /// a cut call, the time from the close of its stages to its end, if longer. REQUIRES: bytes > 0.
  void learn(std::uint64_t bytes, Duration time, bool cut) {
    RecentValues& samples = cut ? cut_ : others_;
    samples.push(std::chrono::duration<double>(time).count() / static_cast<double>(bytes));
  }

  /// Time for the work of a cut call that moves `bytes`: by the 90th percentile, per byte, of the
  /// last 20 cut calls; before the first one, of other calls.
  Duration of(std::uint64_t bytes) const {
    const RecentValues& samples = cut_.empty() ? others_ : cut_;
    const double each = samples.empty() ? kUnknown : samples.quantile(0.9);
    return Duration(std::llround(each * static_cast<double>(bytes) * 1e9));
  }

 private:
  // Seconds per byte: a copy into pages that are touched for the first time.
  static constexpr double kUnknown = 1 / 3e9;

  RecentValues cut_{20};     // seconds per byte
  RecentValues others_{20};  // the same
};

}  // namespace tarpon
