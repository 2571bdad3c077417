// How long a live port sleeps.
#pragma once

#include <algorithm>
#include <ctime>

#include "transport/time.h"

namespace tarpon {

/// No sleep is longer, so that no lost wake-up can last: wait() may always return early.
inline constexpr Duration kLongestWait = 1s;

/// From `now` to `until`, at most kLongestWait. REQUIRES: now < until.
inline timespec wait_timeout(Time now, Time until) {
  const Duration span = until - now < kLongestWait ? until - now : kLongestWait;
  return {.tv_sec = span / 1s, .tv_nsec = (span % 1s).count()};
}

}  // namespace tarpon
