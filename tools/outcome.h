// How a call ended at one rank, in JSON and in one line: the report's answer to "what happened".
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "collectives/allreduce.h"

namespace tarpon {

/// Status, operation, stage, times, and what was had of each rank; tools/README.md lists the
/// fields.
nlohmann::json outcome_json(const Report& report);

/// "operation 7 of tag 0, stage gather, 40.1 ms; of rank 2 came 1408 of 8192 B, last heard
/// 39.8 ms ago": the ranks that most is lacking of, at most three. Without status and detail.
std::string outcome_text(const Report& report);

}  // namespace tarpon
