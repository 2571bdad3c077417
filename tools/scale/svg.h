// The curves as one SVG file that needs nothing else to be seen: completion time (P50 and P99) and
// lost share over the number of ranks.
#pragma once

#include <string>
#include <vector>

#include "tools/scale/experiment.h"

namespace tarpon::scale {

/// REQUIRES: results of at least one cell.
std::string draw(const Plan& plan, const std::vector<CellResult>& results);

}  // namespace tarpon::scale
