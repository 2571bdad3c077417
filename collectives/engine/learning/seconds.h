// Times as numbers of seconds, for arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/time.h"

namespace tarpon {

inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

inline Duration to_duration(double seconds) {
  constexpr double kMost = 1e9;  // a Duration holds more
  return Duration(static_cast<std::int64_t>(std::min(seconds, kMost) * 1e9));
}

}  // namespace tarpon
