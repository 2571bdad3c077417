// How long the work of a call takes once its last stage has closed: learnt from the calls before
// it.
//
// That is the copy for retention, decoding and filling: the time in which pieces of it ran,
// whatever the driver did between them. A call that needed no piece took no time. No clock. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "transport/time.h"

namespace tarpon {

class WorkRate {
 public:
  static constexpr std::size_t kSamples = 20;

  /// A call of a bucket of `bytes` took `time`. REQUIRES: bytes > 0.
  void learn(std::uint64_t bytes, Duration time) {
    samples_[count_++ % kSamples] =
        std::chrono::duration<double>(time).count() / static_cast<double>(bytes);
  }

  /// What a call of a bucket of `bytes` takes: by the 90th percentile of the last 20 calls, per
  /// byte. Zero while nothing is known.
  Duration of(std::uint64_t bytes) const {
    const std::size_t known = std::min(count_, kSamples);
    if (known == 0) return Duration::zero();
    std::array<double, kSamples> sorted = samples_;
    const std::size_t at = (9 * known + 9) / 10 - 1;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at),
                     sorted.begin() + static_cast<std::ptrdiff_t>(known));
    return Duration(std::llround(sorted[at] * static_cast<double>(bytes) * 1e9));
  }

 private:
  std::array<double, kSamples> samples_{};  // seconds per byte, the oldest one replaced first
  std::size_t count_ = 0;                   // calls so far
};

}  // namespace tarpon
