// What went wrong first in a job, and which rank caused it, from the recordings of its ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/flight/merge.h"
#include "tools/flight/rules.h"

namespace tarpon {

/// `operation` is the first in time in which ranks differ: by a failure, or by different arguments.
/// If there is none, it is the oldest that has been open for long; else the first that is partial;
/// else the first whose result is NaN; else the first that was complete, but took 100 ms or longer
/// and more than 10 times the median of the operations alike. nullopt: the recordings show no
/// difference.
struct FlightVerdict {
  std::optional<OperationKey> operation;
  FlightCause cause = FlightCause::none;
  std::vector<FlightBlame> guilty;       // empty where no rank is to blame, and of `undecided`
  std::vector<FlightBlame> candidates;   // of `undecided`
  std::vector<FlightLink> links;         // link_cut, cut_off, loss
  std::vector<FlightEvidence> evidence;  // in time
  std::vector<std::string> also;  // other things that went wrong in the operation, one line each
  std::string missing;            // of `undecided`: the evidence that would decide
  std::string next;               // what to do, one line
  std::string line;               // all of it in one line
  Time zero{};                    // where the printed times begin: the operation's first call
};

FlightVerdict judge_flight(const FlightJob& job);

}  // namespace tarpon
