// What went wrong first in a job, and whose doing it was, from the recordings of its ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/flight/merge.h"
#include "tools/flight/rules.h"

namespace tarpon {

/// `operation`: the first in time in which ranks differ: a failure, or different arguments. Where
/// there is none, the oldest that has been open for long; then the first that is partial; then the
/// first whose result is NaN. Nothing: all that is recorded is alike.
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
