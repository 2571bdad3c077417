// Time as the protocol sees it: an argument, never a clock read.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace tarpon {

using Duration = std::chrono::nanoseconds;

/// Names the time line of one rank: monotonic, with an arbitrary origin. Simulation drives it by
/// hand; live ports pass std::chrono::steady_clock through transport/clock.h.
struct Timeline {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<Timeline, Duration>;
  static constexpr bool is_steady = true;
};

using Time = Timeline::time_point;

/// Later than any bound: "no deadline".
inline constexpr Time kNever = Time::max();

/// `time` + `span`, and kNever where that would overflow. REQUIRES: span >= 0.
constexpr Time after(Time time, Duration span) {
  return time.time_since_epoch() > kNever.time_since_epoch() - span ? kNever : time + span;
}

using namespace std::chrono_literals;

/// `first` doubled `times` times, at most `max`.
inline Duration backed_off(Duration first, std::uint32_t times, Duration max) {
  Duration delay = first;
  for (std::uint32_t i = 0; i < times && delay < max; ++i) delay *= 2;
  return std::min(delay, max);
}

}  // namespace tarpon
