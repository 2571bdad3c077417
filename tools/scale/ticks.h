// Round numbers for the axes of a picture.
#pragma once

#include <vector>

namespace tarpon::scale {

/// Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most 6 of them.
/// REQUIRES: low < high.
std::vector<double> linear_ticks(double low, double high);

/// Round numbers from `low` to `high` for a logarithmic axis: powers of ten where that gives at
/// least 3, else 1, 2 and 5 times those, else as linear_ticks(). REQUIRES: 0 < low < high.
std::vector<double> logarithmic_ticks(double low, double high);

}  // namespace tarpon::scale
