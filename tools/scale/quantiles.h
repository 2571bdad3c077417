// Quantiles of samples, exact: the value below or at which a share of the samples lies; and times
// in the unit of reports.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "transport/time.h"

namespace tarpon::scale {

inline constexpr std::size_t kEnoughForTail = 100;  // operations: of fewer, P99 is the longest

/// Milliseconds.
inline double ms(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

/// The ceil(share x n)-th smallest (nearest rank); 0 of no samples. REQUIRES: sorted, share in
/// (0, 1].
inline Duration quantile(const std::vector<Duration>& sorted, double share) {
  if (sorted.empty()) return Duration{};
  // A share such as 0.99 is no exact double: 99 of 100 must not become 100.
  const double position = std::ceil(share * static_cast<double>(sorted.size()) - 1e-9);
  return sorted[static_cast<std::size_t>(std::max(position, 1.0)) - 1];
}

inline Duration median(std::vector<Duration> samples) {
  std::sort(samples.begin(), samples.end());
  return quantile(samples, 0.5);
}

}  // namespace tarpon::scale
