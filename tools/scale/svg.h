// The curves as one SVG file that needs nothing else to be seen.
#pragma once

#include <string>
#include <vector>

#include "tools/scale/experiment.h"

namespace tarpon::scale {

/// Completion time (P50 and P99) and lost share over the number of ranks. REQUIRES: results of at
/// least one cell.
std::string draw(const Plan& plan, const std::vector<CellResult>& results);

/// The time after the arrival of the late rank, over the number of ranks, beside the published
/// times. The unit is the time of a bucket on a link. REQUIRES: as above; plan.network.late > 0.
std::string draw_after_arrival(const Plan& plan, const std::vector<CellResult>& results);

}  // namespace tarpon::scale
