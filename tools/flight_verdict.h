// What went wrong first, and whose doing it was, from the recordings of a job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/flight_merge.h"

namespace tarpon {

/// A rank to blame, and what speaks against it.
struct FlightBlame {
  Rank rank = 0;
  std::string why;  // "never began it"
};

/// `operation`: the first in time in which ranks differ, lowest (tag, number) among equals:
/// signature, presence, or a status beyond complete and partial. Where there is none, the oldest
/// that is still open; then the first that is partial. Nothing: all that is recorded is alike.
struct FlightVerdict {
  std::optional<OperationKey> operation;
  std::vector<FlightBlame> guilty;  // may be empty: packets were lost, nobody is to blame
  std::string line;                 // all of it in one line
};

FlightVerdict judge_flight(const FlightJob& job);

/// "operation 5 of tag 0", "barrier 7".
std::string operation_text(const OperationKey& key);

}  // namespace tarpon
