// The rules that find the cause of a failed operation in the evidence.
//
// A rule names a rank only where the recordings show that this rank did, or suffered, something
// that the others did not. Where they do not, the verdict is "undecided", with candidates.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/flight/case.h"
#include "tools/flight/cause.h"

namespace tarpon {

/// A rank, and what speaks against it: "never made the call".
struct FlightBlame {
  Rank rank = 0;
  std::string why;
};

/// Packets of `from` do not reach `to`.
struct FlightLink {
  Rank from = 0, to = 0;
  bool operator==(const FlightLink&) const = default;
};

/// What the recording of `rank` shows, at `at` on the job's time axis.
struct FlightEvidence {
  Rank rank = 0;
  std::optional<Time> at;
  std::string text;
};

struct FlightFinding {
  FlightCause cause = FlightCause::undecided;
  Time onset{};         // when the cause began
  bool delays = false;  // it delays an operation, and fails none before its deadline
  std::vector<FlightBlame> guilty = {};  // of `undecided`: the candidates
  std::vector<FlightLink> links = {};
  std::vector<FlightEvidence> evidence = {};
  std::string missing = {};  // of `undecided`: the evidence that would decide
};

/// Causes that a recording states or that follow from times: arguments, ports, aborts, deaths,
/// pauses, late calls. Each rank is blamed once, for its weightiest cause.
std::vector<FlightFinding> direct_findings(const FlightCase& of);

/// Ranks that did not run for much of the operation. One finding a pause, pauses that began
/// together in one; a single finding of all, `stalled`, if most ranks paused.
std::vector<FlightFinding> pause_findings(const FlightCase& of);

/// The ranks that made the call late or never.
std::optional<FlightFinding> late_finding(const FlightCase& of);

/// The direct finding that made the operation fail: if ranks ran out of time, the one that began
/// first, else the first that ended the call at once. nullptr if there is none.
const FlightFinding* first_cause(const FlightCase& of, const std::vector<FlightFinding>& findings);

/// Ranks without a recording, and packets that did not arrive. For use if nothing direct is found.
std::optional<FlightFinding> silence_finding(const FlightCase& of);
std::optional<FlightFinding> link_finding(const FlightCase& of);
std::optional<FlightFinding> loss_finding(const FlightCase& of);

/// The finding if no rule finds a cause: the ranks that others name most, and why that is not
/// enough.
FlightFinding undecided(const FlightCase& of);

/// Bytes of the IPv4 packets that carry a full slot of the job.
std::uint32_t full_packet_bytes(const FlightCase& of);

/// "operation 5 of tag 0", "barrier 7".
std::string operation_text(const OperationKey& key);

}  // namespace tarpon
