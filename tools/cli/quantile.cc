#include "tools/cli/quantile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tarpon {

std::optional<double> quantile(std::vector<double> values, double q) {
  const auto samples = static_cast<double>(values.size());
  const double tail = std::min(q, 1 - q);
  const bool extreme = tail > 0 && tail < 0.5;
  if (values.empty() || (extreme && samples * tail < 0.999999)) return std::nullopt;
  const double position = std::ceil(q * samples) - 1;
  const auto index = static_cast<std::size_t>(std::clamp(position, 0.0, samples - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

}  // namespace tarpon
