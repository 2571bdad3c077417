// The answers of the scale model as a table and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/scale/experiment.h"

namespace tarpon::scale {

/// Lines that say what was modelled, each beginning with "# ".
std::string describe(const Plan& plan);

/// A line per cell: completion times in ms, P99/P50, and what a result lacks in %.
std::string table(const Plan& plan, const std::vector<CellResult>& results);

/// What was modelled, for the JSON report's "config".
nlohmann::json config_json(const Plan& plan);

/// A row per cell: the JSON report's "results".
nlohmann::json results_json(const std::vector<CellResult>& results);

}  // namespace tarpon::scale
