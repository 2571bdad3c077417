// Causes that a recording states: arguments, ports, aborts, deaths.
#include "tools/flight/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "bpf/wire.h"
#include "collectives/engine/flight_events.h"
#include "collectives/reserved_tags.h"

namespace tarpon {
namespace {

using Presence = OperationAtRank::Presence;
using Findings = std::vector<FlightFinding>;

// Facts about ranks travel over the mesh: a fact that arrives up to this long after a failure may
// have caused it at another rank.
constexpr Duration kFactDelay = 50ms;

FlightEvidence about_call(const FlightCase& of, Rank rank, std::string text) {
  return {rank, of[rank].submitted, std::move(text)};
}

// -- arguments

/// The ranks' groups by what they submitted, largest first.
std::vector<std::vector<Rank>> signature_groups(const FlightCase& of) {
  std::vector<std::vector<Rank>> groups;
  const auto key = [&](Rank rank) {
    const Record& record = *of[rank].at->submitted;
    return std::tuple(record.stage, record.detail, record.mask());
  };
  for (Rank rank = 0; rank < of.size(); ++rank) {
    if (!of[rank].at->submitted) continue;
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return key(group[0]) == key(rank); });
    if (same == groups.end()) {
      groups.push_back({rank});
    } else {
      same->push_back(rank);
    }
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return groups;
}

void find_mismatch(const FlightCase& of, Findings& findings) {
  const auto groups = signature_groups(of);
  if (groups.size() < 2) return;
  const auto usual = submitted_signature(*of[groups[0][0]].at->submitted);
  // If the two largest groups are equally large, neither is the usual one.
  const bool tie = groups[0].size() == groups[1].size();
  FlightFinding found{.cause = tie ? FlightCause::undecided : FlightCause::mismatch,
                      .onset = of.begin()};
  for (std::size_t i = tie ? 0 : 1; i < groups.size(); ++i) {
    const auto against = i == 0 ? submitted_signature(*of[groups[1][0]].at->submitted) : usual;
    for (const Rank rank : groups[i]) {
      const auto own = submitted_signature(*of[rank].at->submitted);
      found.guilty.push_back({rank, first_difference(own, against).value_or("other arguments")});
    }
  }
  for (Rank rank = 0; rank < of.size(); ++rank) {
    if (!of[rank].at->submitted) continue;
    const auto call = submitted_signature(*of[rank].at->submitted);
    found.evidence.push_back(
        about_call(of, rank,
                   fmt::format("called for {} {} {}, {}", call.count, name(call.type),
                               name(call.function), name(call.mode))));
  }
  findings.push_back(std::move(found));
}

// -- port, aborts

void find_broken_ports(const FlightCase& of, Findings& findings) {
  for (Rank rank = 0; rank < of.size(); ++rank) {
    const FlightWitness& one = of[rank];
    if (!one.ended || static_cast<Status>(one.at->ended->detail) != Status::failed) continue;
    findings.push_back({.cause = FlightCause::port_failed,
                        .onset = *one.ended,
                        .guilty = {{rank, "its port failed"}},
                        .links = {},
                        .evidence = {{rank, one.ended, "ended the call: its port failed"}}});
  }
}

/// Why a host refuses packets for as long as nobody mends it; "" for what may pass by itself.
std::string refusal_text(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "its own firewall, or a route, forbids outgoing UDP";
    case EMSGSIZE:
      return "the MTU of its interface or route is smaller than when the job began";
    default:
      return "";
  }
}

void find_refused_sends(const FlightCase& of, Findings& findings) {
  for (Rank rank = 0; rank < of.size(); ++rank) {
    const FlightRefusal* first = nullptr;
    std::uint64_t packets = 0;
    for (const FlightRefusal& one : of[rank].refusals) {
      if (refusal_text(one.error).empty()) continue;
      if (one.at < of.begin() || one.at > of.failed() + of.tolerance()) continue;
      if (first == nullptr) first = &one;
      packets += one.packets;
    }
    if (first == nullptr || !of.was_awaited(rank)) continue;
    findings.push_back(
        {.cause = FlightCause::send_refused,
         .onset = std::max(of.begin(), first->at - SendRefusals::kInterval),
         .guilty = {{rank, fmt::format("its host refused to send ({}): {}",
                                       ::strerror(first->error), refusal_text(first->error))}},
         .links = {},
         .evidence = {
             {rank, first->at,
              fmt::format("was refused packets by its own host, from here on {}", packets)}}});
  }
}

struct AbortSeen {
  Rank origin = 0;
  AbortReasonRow reason;
  Rank seen_by = 0;
  Time at{};
};

std::optional<AbortSeen> abort_seen_by(const FlightCase& of, Rank rank) {
  const auto& abort = of[rank].at->abort;
  if (!abort) return std::nullopt;
  const auto named = static_cast<std::size_t>(std::countr_zero(abort->mask()));
  const std::size_t sender = abort->kind == RecordKind::abort_out ? rank : abort->peer;
  const std::size_t origin = named < of.size() ? named : sender;
  if (origin >= of.size()) return std::nullopt;
  return AbortSeen{static_cast<Rank>(origin), abort_reason(abort->detail), rank,
                   of.job().ranks[rank].at(*abort)};
}

void find_aborts(const FlightCase& of, Findings& findings) {
  std::vector<std::optional<AbortSeen>> first(of.size());
  for (Rank rank = 0; rank < of.size(); ++rank) {
    const auto seen = abort_seen_by(of, rank);
    if (!seen || seen->reason.cause == FlightCause::none) continue;
    auto& known = first[seen->origin];
    const bool own = seen->seen_by == seen->origin;
    if (!known || own || (seen->at < known->at && known->seen_by != known->origin)) known = seen;
  }
  for (const auto& seen : first) {
    if (!seen) continue;
    // An abort after a failure is a consequence of that failure.
    const bool placed = of[seen->seen_by].placed;
    if (placed && seen->at > of.failed() + of.tolerance() + 1ms) continue;
    const bool own = seen->seen_by == seen->origin;
    findings.push_back({.cause = seen->reason.cause,
                        .onset = seen->at,
                        .guilty = {{seen->origin, std::string(seen->reason.text)}},
                        .links = {},
                        .evidence = {{seen->seen_by, seen->at,
                                      own ? fmt::format("told the others: {}", seen->reason.text)
                                          : fmt::format("was told of rank {}: {}", seen->origin,
                                                        seen->reason.text)}}});
  }
}

// -- deaths, leaving, eviction

void find_signals(const FlightCase& of, Findings& findings) {
  for (Rank rank = 0; rank < of.size(); ++rank) {
    const FlightRank& recording = of.job().ranks[rank];
    if (!died_of_signal(recording) || of[rank].ended) continue;
    const int signal = static_cast<int>(recording.dump->header.signal);
    const std::string why =
        fmt::format("died of signal {} ({}) {}", signal, ::strsignal(signal),
                    of[rank].at->opened ? "in the operation" : "before the operation");
    findings.push_back({.cause = FlightCause::died,
                        .onset = recording.dumped(),
                        .guilty = {{rank, why}},
                        .links = {},
                        .evidence = {{rank, recording.dumped(), why}}});
  }
}

/// The latest time at which another rank had heard `rank`, by the recordings, and at most
/// `otherwise`; `otherwise` if none tells.
Time last_heard(const FlightCase& of, Rank rank, Time otherwise) {
  Time last = Time::min();
  for (Rank other = 0; other < of.size(); ++other) {
    if (other == rank || !of[other].ended) continue;
    const auto age = of.unheard_for(other, rank);
    if (age && *age != Duration::max()) last = std::max(last, *of[other].ended - *age);
  }
  return last == Time::min() ? otherwise : std::min(last, otherwise);
}

FlightCause cause_of(Standing standing) {
  switch (standing) {
    case Standing::left:
      return FlightCause::left;
    case Standing::evicted:
      return FlightCause::evicted;
    case Standing::dead:
    case Standing::live:
      break;
  }
  return FlightCause::died;
}

/// Whether `rank` began the call, by its own recording or by what another rank heard of it.
bool took_part(const FlightCase& of, Rank rank) {
  return of[rank].at->presence == Presence::begun || of.was_heard(rank);
}

/// Whether a rank gave the call up because `rank` had left.
bool was_missed(const FlightCase& of, Rank rank) {
  for (Rank other = 0; other < of.size(); ++other) {
    const auto& ended = of[other].at->ended;
    if (!ended || static_cast<Status>(ended->detail) != Status::peer_left) continue;
    if ((ended->mask() >> rank & 1) != 0) return true;
  }
  return false;
}

/// Whether the operation can have failed because of what `seen` says about `rank`.
bool is_possible_cause(const FlightCase& of, Rank rank, const FlightStanding& seen) {
  if (seen.at > of.failed() + of.tolerance() + kFactDelay) return false;
  // A rank that ended the call died after it.
  if (seen.standing == Standing::dead) return !of[rank].ended;
  if (seen.standing != Standing::left) return true;
  // A rank that began the call left after that, which matters only if it left too early.
  return !took_part(of, rank) || was_missed(of, rank);
}

std::string standing_text(const FlightCase& of, Rank rank, Standing standing) {
  if (standing == Standing::left) {
    return took_part(of, rank) ? "left the job before the others had ended the call"
                               : "left the job before the call";
  }
  if (standing == Standing::evicted) return "was evicted: it was too far behind the others";
  if (of.job().ranks[rank].dump) return "its process ended";
  return "its process is gone and left no recording: killed, or its host is gone";
}

void find_standings(const FlightCase& of, Findings& findings) {
  for (Rank rank = 0; rank < of.size(); ++rank) {
    const FlightStanding* first = nullptr;
    for (const FlightStanding& seen : of[rank].standings) {
      if (!is_possible_cause(of, rank, seen)) continue;
      if (first == nullptr || seen.at < first->at) first = &seen;
    }
    if (first == nullptr) continue;
    FlightFinding found{.cause = cause_of(first->standing),
                        .onset = last_heard(of, rank, first->at),
                        .guilty = {{rank, standing_text(of, rank, first->standing)}}};
    if (found.onset < first->at) {
      found.evidence.push_back({rank, found.onset, "was last heard by the others"});
    }
    for (const FlightStanding& seen : of[rank].standings) {
      if (!is_possible_cause(of, rank, seen)) continue;
      const std::string about = seen.by == rank ? "it" : fmt::format("rank {}", rank);
      found.evidence.push_back(
          {seen.by, seen.at,
           fmt::format("learned that {} {} {}", about,
                       seen.standing == Standing::left ? "has" : "is", name(seen.standing))});
    }
    findings.push_back(std::move(found));
  }
}

// -- NaN

void find_nonfinite(const FlightCase& of, Findings& findings) {
  std::uint64_t sources = 0;
  FlightFinding found{.cause = FlightCause::nonfinite, .onset = of.begin()};
  for (Rank rank = 0; rank < of.size(); ++rank) {
    if (!of[rank].at->nonfinite) continue;
    sources |= of[rank].at->nonfinite->mask();
    found.evidence.push_back({rank, of[rank].ended, "ended the call: the result is NaN"});
  }
  for (Rank rank = 0; rank < of.size(); ++rank) {
    if ((sources >> rank & 1) != 0) {
      found.guilty.push_back({rank, "its input held NaN or infinity"});
    }
  }
  if (found.guilty.empty()) found.cause = FlightCause::undecided;
  findings.push_back(std::move(found));
}

/// Adds a finding whose ranks are all blamed already to the earlier finding, with its evidence.
Findings merged(Findings findings) {
  Findings result;
  for (FlightFinding& one : findings) {
    const auto blames = [](const FlightFinding& finding, Rank rank) {
      return std::any_of(finding.guilty.begin(), finding.guilty.end(),
                         [rank](const FlightBlame& blame) { return blame.rank == rank; });
    };
    FlightFinding* before = nullptr;
    std::erase_if(one.guilty, [&](const FlightBlame& blame) {
      const auto known = std::find_if(result.begin(), result.end(), [&](const auto& finding) {
        return blames(finding, blame.rank);
      });
      if (known == result.end()) return false;
      before = &*known;
      return true;
    });
    if (before == nullptr || !one.guilty.empty()) {
      result.push_back(std::move(one));
      continue;
    }
    before->onset = std::min(before->onset, one.onset);
    std::move(one.evidence.begin(), one.evidence.end(), std::back_inserter(before->evidence));
  }
  return result;
}

}  // namespace

std::string operation_text(const OperationKey& key) {
  const std::string reserved = reserved_name(key.first);
  return reserved.empty() ? fmt::format("operation {} of tag {}", key.second, key.first)
                          : fmt::format("{} {}", reserved, key.second);
}

std::uint32_t full_packet_bytes(const FlightCase& of) {
  constexpr std::uint32_t kIpAndUdp = 20 + 8;
  for (const FlightRank& rank : of.job().ranks) {
    if (rank.dump) return kIpAndUdp + TARPON_HEADER_BYTES + rank.dump->header.slot_bytes;
  }
  return 0;
}

const FlightFinding* first_cause(const FlightCase& of, const Findings& findings) {
  const auto earlier = [&](const FlightFinding& a, const FlightFinding& b) {
    if (!of.ran_out_of_time() && a.delays != b.delays) return b.delays;
    return a.onset < b.onset;
  };
  const auto first = std::min_element(findings.begin(), findings.end(), earlier);
  return first == findings.end() ? nullptr : &*first;
}

std::vector<FlightFinding> direct_findings(const FlightCase& of) {
  Findings findings;
  if (of.trouble() == FlightTrouble::nonfinite) {
    find_nonfinite(of, findings);
    return findings;
  }
  find_mismatch(of, findings);
  find_broken_ports(of, findings);
  find_refused_sends(of, findings);
  find_aborts(of, findings);
  find_signals(of, findings);
  find_standings(of, findings);
  for (FlightFinding& pause : pause_findings(of)) findings.push_back(std::move(pause));
  if (auto late = late_finding(of)) findings.push_back(std::move(*late));
  return merged(std::move(findings));
}

}  // namespace tarpon
