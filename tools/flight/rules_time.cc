// Causes that follow from times: pauses of a rank, and calls that came late.
#include <fmt/format.h>

#include <algorithm>

#include "tools/flight/rules.h"

namespace tarpon {
namespace {

using Presence = OperationAtRank::Presence;
using Findings = std::vector<FlightFinding>;

/// Whether `pause` took at least a quarter of the operation's time and lasted into its last
/// quarter: the operation can make up for a pause that ended well before the failure.
bool explains(const FlightCase& of, const FlightWitness& one, const FlightPause& pause) {
  // Without a common clock, compare the pause with the rank's own call.
  const Time begin = one.placed ? of.begin() : one.submitted.value_or(pause.from);
  const Time failed = one.placed ? of.failed() : one.until;
  const Duration window = failed - begin;
  const Duration taken = std::min(pause.to, failed) - std::max(pause.from, begin);
  return taken > Duration{} && taken >= window / 4 && pause.to >= failed - window / 4 &&
         pause.from < failed;
}

/// Joins findings of pauses that began at the same time, within the tolerance, into one.
void join_simultaneous(const FlightCase& of, Findings& found) {
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.onset < b.onset; });
  const Duration same = of.window() / 20 + of.tolerance();
  for (std::size_t i = 1; i < found.size();) {
    if (found[i].onset - found[i - 1].onset > same) {
      ++i;
      continue;
    }
    std::move(found[i].guilty.begin(), found[i].guilty.end(),
              std::back_inserter(found[i - 1].guilty));
    std::move(found[i].evidence.begin(), found[i].evidence.end(),
              std::back_inserter(found[i - 1].evidence));
    found.erase(found.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace

std::vector<FlightFinding> pause_findings(const FlightCase& of) {
  Findings found;
  for (Rank rank = 0; rank < of.size(); ++rank) {
    if (!of[rank].known || !of.was_awaited(rank)) continue;
    for (const FlightPause& pause : of[rank].pauses) {
      if (!explains(of, of[rank], pause)) continue;
      const std::string text =
          fmt::format("did not run for {:.3f} ms", to_ms(pause.to - pause.from));
      found.push_back(
          {.cause = FlightCause::paused,
           .onset = pause.from,
           .delays = true,
           .guilty = {{rank, text}},
           .links = {},
           .evidence = {{rank, pause.from, "last looked at its calls"},
                        {rank, pause.to,
                         fmt::format("ran again after {:.3f} ms, {:.3f} ms after it had to",
                                     to_ms(pause.to - pause.from), to_ms(pause.overdue))}}});
      break;
    }
  }
  if (of.size() <= 2 || 2 * found.size() <= of.size()) {
    join_simultaneous(of, found);
    return found;
  }
  FlightFinding all{.cause = FlightCause::stalled, .onset = kNever, .delays = true};
  for (FlightFinding& one : found) {
    all.onset = std::min(all.onset, one.onset);
    std::move(one.evidence.begin(), one.evidence.end(), std::back_inserter(all.evidence));
  }
  return {std::move(all)};
}

// -- late calls

namespace {

bool was_late(const FlightCase& of, Rank rank) {
  const FlightWitness& one = of[rank];
  if (!one.known || !of.was_awaited(rank)) return false;
  if (one.at->presence == Presence::never) return true;
  if (!one.placed || !one.submitted) return false;
  // A call that comes well before the failure leaves time for the operation.
  const Duration delay = *one.submitted - of.begin() - of.tolerance();
  return delay > 2 * one.usual_delay && delay > of.window() - of.window() / 4;
}

/// Adds what the rank did before it made the call.
void tell_what_before(const FlightCase& of, Rank rank, std::vector<FlightEvidence>& evidence) {
  const FlightWitness& one = of[rank];
  if (!one.previous) {
    evidence.push_back({rank, std::nullopt, "ended no other call before"});
  } else {
    const Time until = one.submitted.value_or(one.until);
    evidence.push_back(
        {rank, one.previous_end,
         fmt::format("ended {}, then spent {:.3f} ms outside of calls",
                     operation_text(*one.previous), to_ms(until - *one.previous_end))});
  }
  if (one.submitted) {
    evidence.push_back({rank, one.submitted,
                        fmt::format("made the call {:.3f} ms after the first rank; at most {:.3f} "
                                    "ms in earlier operations",
                                    to_ms(*one.submitted - of.begin()), to_ms(one.usual_delay))});
  } else {
    evidence.push_back({rank, one.until, "had not made the call at the end of its recording"});
  }
}

}  // namespace

std::optional<FlightFinding> late_finding(const FlightCase& of) {
  std::vector<Rank> late;
  std::size_t known = 0;
  for (Rank rank = 0; rank < of.size(); ++rank) {
    if (of[rank].known) ++known;
    if (was_late(of, rank)) late.push_back(rank);
  }
  if (late.empty()) return std::nullopt;
  FlightFinding found{.cause = FlightCause::late, .onset = of.begin(), .delays = true};
  // If most ranks came late, the others may instead have come too early.
  if (2 * late.size() > std::max<std::size_t>(known, 2)) found.cause = FlightCause::undecided;
  for (const Rank rank : late) {
    const auto& submitted = of[rank].submitted;
    found.guilty.push_back({rank, submitted ? fmt::format("made the call {:.3f} ms after the first "
                                                          "rank",
                                                          to_ms(*submitted - of.begin()))
                                            : "never made the call"});
    tell_what_before(of, rank, found.evidence);
  }
  return found;
}

}  // namespace tarpon
