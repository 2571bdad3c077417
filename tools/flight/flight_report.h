// A job's recordings as text, JSON and a picture.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/flight/merge.h"
#include "tools/flight/verdict.h"

namespace tarpon {

/// The ranks, then the events of the operation that the verdict is about (without a verdict: of the
/// newest operation), then the evidence, and last the verdict. A long list of
/// events is shortened in the middle. `all`: every event of the recordings.
std::string flight_text(const FlightJob& job, const FlightVerdict& verdict, bool all);

/// The job, and the verdict alone: "# verdict: ", "# missing: " if evidence is missing, "# next: ".
std::string verdict_text(const FlightJob& job, const FlightVerdict& verdict);

/// The job's row of the JSON report: "job", "world_size", "ranks", "verdict", "events".
nlohmann::json flight_json(const FlightJob& job, const FlightVerdict& verdict);

/// Ranks as rows, stages as bars: the operation of the verdict and what was around it. One file
/// that needs nothing else.
std::string flight_svg(const FlightJob& job, const FlightVerdict& verdict);

/// "0:5", tag and number, or "barrier 7".
std::string short_text(const OperationKey& key);

/// What an event says beside its kind: "of rank 2, 4 slots".
std::string event_detail(const Record& record);

}  // namespace tarpon
