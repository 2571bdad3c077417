// The one place where live code reads the monotonic clock.
#pragma once

#include "transport/time.h"

namespace tarpon {

/// CLOCK_MONOTONIC as a Time. Thread-safe.
inline Time monotonic_now() {
  return Time(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace tarpon
