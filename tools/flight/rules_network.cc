// Causes that follow from what did not arrive: ranks without a recording, cut links, loss.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>

#include "tools/flight/rules.h"
#include "tools/job/rank_names.h"

namespace tarpon {
namespace {

using Ranks = std::vector<Rank>;

/// Whether the recording of `rank` covers the operation, and the rank made the call.
bool made_call(const FlightCase& of, Rank rank) {
  return of[rank].known && of[rank].at->opened.has_value();
}

/// Silence below this is a pause between two packets.
Duration long_silence(const FlightCase& of) {
  return std::max<Duration>(of.window() / 4, 5ms);
}

/// Ranks that took part and were not complete in the end.
Ranks waiting_ranks(const FlightCase& of) {
  Ranks found;
  for (Rank rank = 0; rank < of.size(); ++rank) {
    if (made_call(of, rank) && of[rank].lacks != 0) found.push_back(rank);
  }
  return found;
}

// -- ranks without a recording

std::string silence_evidence(const FlightCase& of, Rank witness, Rank rank) {
  if ((of[witness].at->heard >> rank & 1) == 0) {
    return fmt::format("waited for rank {} and heard nothing of it in the operation", rank);
  }
  const auto age = of.unheard_for(witness, rank);
  return age ? fmt::format("waited for rank {}, last heard {:.3f} ms before", rank, to_ms(*age))
             : fmt::format("waited for rank {}", rank);
}

/// Whether at least one rank waited for `rank`, and all that did heard nothing of it for long. A
/// recording made after the failure shows that the rank went on.
bool fell_silent(const FlightCase& of, Rank rank) {
  const FlightRank& recording = of.job().ranks[rank];
  if (recording.dump && recording.dumped() > of.failed()) return false;
  bool waited = false;
  for (const Rank other : waiting_ranks(of)) {
    if ((of[other].lacks >> rank & 1) == 0) continue;
    const auto age = of.unheard_for(other, rank);
    if (age && *age < long_silence(of)) return false;
    waited = true;
  }
  return waited;
}

}  // namespace

std::optional<FlightFinding> silence_finding(const FlightCase& of) {
  Ranks never_heard, silent;
  std::size_t known = 0;
  for (Rank rank = 0; rank < of.size(); ++rank) {
    if (of[rank].known) {
      ++known;
    } else if (!of.was_heard(rank) && fell_silent(of, rank)) {
      never_heard.push_back(rank);
    } else if (fell_silent(of, rank)) {
      silent.push_back(rank);
    }
  }
  // A silent rank may only have waited for a rank that was never heard.
  const Ranks& found = never_heard.empty() ? silent : never_heard;
  if (found.empty() || found.size() > std::max<std::size_t>(known, 1)) return std::nullopt;
  FlightFinding finding{.cause = FlightCause::silent, .onset = of.begin()};
  for (const Rank rank : found) {
    const bool recorded = of.job().ranks[rank].dump.has_value();
    finding.guilty.push_back(
        {rank, fmt::format("{} and left no recording{}: stopped, killed or cut off",
                           of.was_heard(rank) ? "fell silent in it" : "was never heard in it",
                           recorded ? " of it" : "")});
    for (const Rank witness : waiting_ranks(of)) {
      if ((of[witness].lacks >> rank & 1) == 0) continue;
      finding.evidence.push_back({witness, of[witness].until, silence_evidence(of, witness, rank)});
    }
  }
  return finding;
}

// -- links

namespace {

bool sent_to_peer(RecordKind kind) {
  return kind == RecordKind::ready_out || kind == RecordKind::repair_out ||
         kind == RecordKind::abort_out || kind == RecordKind::closed_out ||
         kind == RecordKind::credit;
}

/// Whether the asked rank answers a peer's request: a repair only if it has the data.
bool answered_request(const FlightWitness& asked, const Record& record) {
  if (record.kind == RecordKind::ready_in) return true;
  return record.kind == RecordKind::repair_in && (record.stage == 0 || asked.at->closed[0]);
}

/// Number of recorded packets that `from` sent to `to`, or had to send as an answer, in [begin,
/// end) of the axis.
std::size_t attempts(const FlightCase& of, Rank from, Rank to, Time begin, Time end) {
  std::size_t count = 0;
  for (const Record& record : of.records_with(from, to)) {
    const Time at = of.job().ranks[from].at(record);
    if (at < begin || at >= end) continue;
    if (sent_to_peer(record.kind) || answered_request(of[from], record)) ++count;
  }
  return count;
}

/// Whether `to` heard nothing of `from` although `from` had begun and sent. REQUIRES: both took
/// part.
bool is_cut(const FlightCase& of, Rank from, Rank to) {
  const FlightWitness& sender = of[from];
  const FlightWitness& receiver = of[to];
  if (receiver.lacks == 0) return false;
  const Time both = std::max(*sender.opened, *receiver.opened);
  const Time end = std::min(receiver.until, sender.until);
  if (end - both < long_silence(of) + of.tolerance()) return false;
  if ((receiver.at->heard >> from & 1) == 0) {
    // Its contribution was due from the beginning.
    return (receiver.lacks >> from & 1) != 0;
  }
  const auto age = of.unheard_for(to, from);
  if (!age || *age == Duration::max() || *age < long_silence(of)) return false;
  constexpr std::size_t kEnoughAttempts = 3;
  const Time silent_from = receiver.until - *age + of.tolerance() + 1ms;
  return attempts(of, from, to, silent_from, end - of.tolerance()) >= kEnoughAttempts;
}

std::vector<FlightLink> cut_links(const FlightCase& of) {
  std::vector<FlightLink> links;
  for (Rank from = 0; from < of.size(); ++from) {
    for (Rank to = 0; to < of.size(); ++to) {
      if (from == to || !made_call(of, from) || !made_call(of, to)) continue;
      if (is_cut(of, from, to)) links.push_back({from, to});
    }
  }
  return links;
}

/// The rank that all cut links have in common, if in one direction it is cut off from all others
/// that made the call. Needs more than two ranks that made it.
std::optional<Rank> common_end(const FlightCase& of, const std::vector<FlightLink>& links) {
  std::size_t parties = 0;
  for (Rank rank = 0; rank < of.size(); ++rank) parties += made_call(of, rank) ? 1u : 0u;
  if (parties < 3) return std::nullopt;
  for (Rank rank = 0; rank < of.size(); ++rank) {
    std::size_t out = 0, in = 0;
    for (const FlightLink& link : links) {
      out += link.from == rank ? 1u : 0u;
      in += link.to == rank ? 1u : 0u;
    }
    const bool all_of_one_way = out == parties - 1 || in == parties - 1;
    if (all_of_one_way && out + in == links.size()) return rank;
  }
  return std::nullopt;
}

FlightEvidence link_evidence(const FlightCase& of, const FlightLink& link) {
  const FlightWitness& receiver = of[link.to];
  if ((receiver.at->heard >> link.from & 1) == 0) {
    return {link.to, receiver.until,
            fmt::format("had heard nothing of rank {}, which began at {:.3f} ms", link.from,
                        to_ms(*of[link.from].opened - of.begin()))};
  }
  const Duration age = of.unheard_for(link.to, link.from).value_or(Duration{});
  return {link.to, receiver.until - age,
          fmt::format("last heard rank {}, which recorded {} packets to it or requests of it "
                      "afterwards",
                      link.from,
                      attempts(of, link.from, link.to, receiver.until - age, receiver.until))};
}

}  // namespace

std::optional<FlightFinding> link_finding(const FlightCase& of) {
  FlightFinding found{.cause = FlightCause::link_cut, .onset = of.begin()};
  found.links = cut_links(of);
  if (found.links.empty()) return std::nullopt;
  for (const FlightLink& link : found.links) found.evidence.push_back(link_evidence(of, link));
  if (const auto rank = common_end(of, found.links)) {
    found.cause = FlightCause::cut_off;
    const bool hears = std::none_of(found.links.begin(), found.links.end(),
                                    [&](const FlightLink& link) { return link.to == *rank; });
    const bool heard = std::none_of(found.links.begin(), found.links.end(),
                                    [&](const FlightLink& link) { return link.from == *rank; });
    found.guilty.push_back({*rank, hears   ? "its packets reached no other rank"
                                   : heard ? "no packet of another rank reached it"
                                           : "it ran, and no packet came or went"});
  }
  return found;
}

// -- loss

namespace {

/// Whether the recordings show that `asked` ran and had the data that `asker` requests. Data of a
/// later stage may wait for another rank until the stage before has closed.
bool had_data(const FlightCase& of, Rank asker, Rank asked, const Record& request) {
  if (!of[asked].known) return false;
  if (request.stage == 0 || request.stage > 3) return true;
  const std::optional<Record>& closed = of[asked].at->closed[request.stage - 1];
  return closed && of.job().ranks[asked].at(*closed) <= of.job().ranks[asker].at(request);
}

/// The longest row of requests for repair that arrived at `rank` from `peer`.
std::uint32_t requests_arrived(const FlightCase& of, Rank rank, Rank peer) {
  std::uint32_t longest = 0;
  for (const Record& record : of.records_with(rank, peer)) {
    if (record.kind == RecordKind::repair_in) longest = std::max(longest, record.value);
  }
  return longest;
}

/// The longest row of requests of `rank` for data that `peer` had.
std::uint32_t requests_in_vain(const FlightCase& of, Rank rank, Rank peer) {
  std::uint32_t longest = 0;
  std::array<std::uint32_t, 4> too_early{};  // by stage: requests of the row, before there was data
  for (const Record& record : of.records_with(rank, peer)) {
    if (record.kind != RecordKind::repair_out || record.stage >= too_early.size()) continue;
    std::uint32_t& before = too_early[record.stage];
    if (!had_data(of, rank, peer, record)) {
      before = record.value;
      continue;
    }
    if (record.value <= before) before = 0;  // another row
    longest = std::max(longest, record.value - before);
  }
  return longest;
}

/// Whether `to` asked `from` for data again and again in vain, although small packets pass both
/// ways: their requests for repair. So the path has come to carry smaller packets than it did.
bool lacks_full_size(const FlightCase& of, const FlightLink& link) {
  constexpr std::uint32_t kInVain = 8, kPassed = 4;
  return requests_in_vain(of, link.to, link.from) >= kInVain &&
         requests_arrived(of, link.to, link.from) >= kPassed &&
         requests_arrived(of, link.from, link.to) >= kPassed;
}

std::optional<FlightFinding> size_finding(const FlightCase& of,
                                          const std::vector<FlightLink>& asked) {
  FlightFinding found{.cause = FlightCause::mtu, .onset = of.begin()};
  for (const FlightLink& link : asked) {
    if (!lacks_full_size(of, link)) continue;
    found.links.push_back(link);
    found.evidence.push_back(
        {link.to, of[link.to].until,
         fmt::format("asked rank {} again and again in vain, and heard its small packets: those of "
                     "{} bytes are lost",
                     link.from, full_packet_bytes(of))});
  }
  if (found.links.empty()) return std::nullopt;
  return found;
}

}  // namespace

std::optional<FlightFinding> loss_finding(const FlightCase& of) {
  // Repairs that the receiver asked of the sender, once there was data.
  struct Asked {
    FlightLink link;
    std::size_t requests = 0;
  };
  std::vector<Asked> asked;
  std::size_t requests = 0;
  for (Rank to = 0; to < of.size(); ++to) {
    if (!made_call(of, to)) continue;
    for (Rank from = 0; from < of.size(); ++from) {
      if (from == to) continue;
      const auto records = of.records_with(to, from);
      const auto count = static_cast<std::size_t>(
          std::count_if(records.begin(), records.end(), [&](const Record& record) {
            return record.kind == RecordKind::repair_out && had_data(of, to, from, record);
          }));
      if (count > 0) asked.push_back({{from, to}, count});
      requests += count;
    }
  }
  std::vector<FlightLink> links;
  links.reserve(asked.size());
  for (const Asked& one : asked) links.push_back(one.link);
  if (auto size = size_finding(of, links)) return size;
  constexpr std::size_t kMany = 4;
  const auto worst =
      std::max_element(asked.begin(), asked.end(),
                       [](const Asked& a, const Asked& b) { return a.requests < b.requests; });
  const bool partial = of.trouble() == FlightTrouble::partial;
  if (worst == asked.end() || (worst->requests < kMany && !partial)) {
    if (!partial) return std::nullopt;
    return FlightFinding{.cause = FlightCause::loss, .onset = of.begin()};
  }
  FlightFinding found{.cause = FlightCause::loss, .onset = of.begin()};
  found.evidence.push_back({worst->link.to, std::nullopt,
                            fmt::format("asked rank {} again {} times in this operation, of {} "
                                        "such requests of all ranks",
                                        worst->link.from, worst->requests, requests)});
  // A link stands out if it needed more requests than all others together.
  if (worst->requests >= kMany && 2 * worst->requests > requests) {
    found.links.push_back(worst->link);
  }
  return found;
}

// -- nothing found

namespace {

std::vector<FlightBlame> most_named(const FlightCase& of) {
  std::vector<FlightBlame> candidates;
  const Ranks voters = waiting_ranks(of);
  for (Rank rank = 0; rank < of.size(); ++rank) {
    const auto votes = std::count_if(voters.begin(), voters.end(), [&](Rank voter) {
      return (of[voter].lacks >> rank & 1) != 0;
    });
    if (votes > 0 && 2 * static_cast<std::size_t>(votes) >= voters.size()) {
      candidates.push_back(
          {rank, fmt::format("{} of {} waiting ranks waited for it", votes, voters.size())});
    }
  }
  return candidates;
}

/// What the others asked of ranks that left no recording of the operation.
std::vector<FlightEvidence> requests_without_answer(const FlightCase& of) {
  std::vector<FlightEvidence> evidence;
  for (Rank asked = 0; asked < of.size(); ++asked) {
    if (of[asked].known) continue;
    for (Rank asker = 0; asker < of.size(); ++asker) {
      if (!made_call(of, asker)) continue;
      const auto records = of.records_with(asker, asked);
      const auto count = std::count_if(records.begin(), records.end(), [](const Record& record) {
        return record.kind == RecordKind::repair_out;
      });
      if (count == 0) continue;
      evidence.push_back(
          {asker, std::nullopt,
           fmt::format("asked rank {} again {} times; that rank left no recording", asked, count)});
    }
  }
  return evidence;
}

std::string missing_evidence(const FlightCase& of) {
  Ranks none, unplaced;
  for (Rank rank = 0; rank < of.size(); ++rank) {
    if (!of[rank].known) {
      none.push_back(rank);
    } else if (!of[rank].placed) {
      unplaced.push_back(rank);
    }
  }
  std::string text;
  if (!none.empty()) {
    text = fmt::format("the recording of this operation of {}", rank_names(none));
  }
  if (!unplaced.empty()) {
    text += fmt::format("{}a common clock for {}", text.empty() ? "" : "; ", rank_names(unplaced));
  }
  return text;
}

}  // namespace

FlightFinding undecided(const FlightCase& of) {
  FlightFinding found{.cause = FlightCause::undecided, .onset = of.begin()};
  found.missing = missing_evidence(of);
  found.guilty = most_named(of);
  found.evidence = requests_without_answer(of);
  const Ranks waiting = waiting_ranks(of);
  const bool all_here = std::all_of(waiting.begin(), waiting.end(), [&](Rank rank) {
    for (Rank peer = 0; peer < of.size(); ++peer) {
      if ((of[rank].lacks >> peer & 1) == 0) continue;
      const auto age = of.unheard_for(rank, peer);
      if (!age || *age >= long_silence(of)) return false;
    }
    return true;
  });
  if (!found.missing.empty() || waiting.empty() || !all_here) return found;
  // Every rank took part, and those that were waited for still sent.
  found.cause = FlightCause::slow;
  found.guilty.clear();
  for (const Rank rank : waiting) {
    found.evidence.push_back(
        {rank, of[rank].until, "ran out of time while data of the ranks that it lacks still came"});
  }
  return found;
}

}  // namespace tarpon
