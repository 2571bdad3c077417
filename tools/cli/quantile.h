// Quantiles of samples.
#pragma once

#include <optional>
#include <vector>

namespace tarpon {

/// Quantile by nearest rank; nullopt if there are too few samples for it: p99 needs 100, the median
/// one.
std::optional<double> quantile(std::vector<double> values, double q);

}  // namespace tarpon
