// A report as text for people: what the tarpon tool prints about a call.
#pragma once

#include <string>
#include <vector>

#include "collectives/allreduce.h"

namespace tarpon {

/// One line, without a newline: "peer_late: DETAIL (operation 7 of tag 0, stage gather, 40.1 ms; of
/// rank 2: 1408 of 8192 B received, last heard 39.8 ms ago)". A call with a result has no detail:
/// "complete: operation 7 of tag 0, stage result, 1.2 ms".
std::string to_string(const Report& report);

/// The part that says which call it was and how far it had come: the ranks whose data is missing,
/// at most three of them, those with the most missing data first. Without status and detail.
std::string progress_text(const Report& report);

/// The ranks' errors in one line, each once: "ranks 0, 2: no memory; rank 1: no such file". An
/// empty text is no error; without any the line is empty.
std::string errors_text(const std::vector<std::string>& error_by_rank);

}  // namespace tarpon
