// How a call ended at one rank, in JSON. As text: collectives/report_text.h.
#pragma once

#include <nlohmann/json.hpp>

#include "collectives/allreduce.h"

namespace tarpon {

/// Status, operation, stage, times, and what arrived from each rank; tools/README.md lists the
/// fields.
nlohmann::json outcome_json(const Report& report);

}  // namespace tarpon
