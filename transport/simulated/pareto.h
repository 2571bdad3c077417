// Delays with a Pareto tail, in integers: std::pow need not give the same bits everywhere.
#pragma once

#include <cstdint>

#include "transport/random.h"
#include "transport/time.h"

namespace tarpon {

/// Draws X = x_m U^(-1/a), U uniform in (0, 1], with the P50 and the P99/P50 asked for:
/// P99/P50 = 50^(1/a), x_m = P50 / 2^(1/a). Nothing is drawn above kLongest.
class Pareto {
 public:
  static constexpr Duration kLongest = std::chrono::seconds(10);

  /// `tail` = P99/P50, 1 to 50 (1: always the median); `median` 0: always 0, and nothing is drawn.
  Pareto(double tail, Duration median);

  Duration draw(Random& random) const;

 private:
  std::uint64_t inverse_shape_ = 0;  // 1/a in units of 2^-32
  std::uint64_t least_ns_ = 0;       // x_m
};

/// log2(x / 2^32) and 2^(x / 2^32) in units of 2^-32, exact to about 2^-24 relative.
/// REQUIRES: x >= 2^32.
std::uint64_t fixed_log2(std::uint64_t x);
/// REQUIRES: x < 31 x 2^32.
std::uint64_t fixed_exp2(std::uint64_t x);

}  // namespace tarpon
