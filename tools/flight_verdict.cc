#include "tools/flight_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bpf/wire.h"
#include "collectives/allreduce.h"
#include "collectives/flight_events.h"

namespace tarpon {
namespace {

using Operation = std::vector<OperationAtRank>;
using Presence = OperationAtRank::Presence;

double ms(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

Status status_of(const OperationAtRank& at) {
  return static_cast<Status>(at.ended->detail);
}

bool harmless(Status status) {
  return status == Status::complete || status == Status::partial || status == Status::late_self;
}

/// A signal other than the launcher's polite one ended this rank.
bool died(const FlightRank& rank) {
  constexpr std::uint32_t kTerminate = 15;
  return rank.dump && rank.dump->header.reason == DumpReason::fatal &&
         rank.dump->header.signal != kTerminate;
}

enum class Kind { alike, partial, open, failed };

Kind kind_of(const FlightJob& job, const Operation& operation) {
  bool open = false, partial = false, absent = false;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    const OperationAtRank& at = operation[rank];
    absent |= at.presence == Presence::never;
    if (at.presence != Presence::begun) continue;
    if (!at.ended) {
      if (died(job.ranks[rank])) return Kind::failed;
      open = true;
      continue;
    }
    if (!harmless(status_of(at))) return Kind::failed;
    partial |= status_of(at) != Status::complete;
  }
  if (open || absent) return Kind::open;
  return partial ? Kind::partial : Kind::alike;
}

/// The ranks' groups by what they submitted, largest first.
std::vector<std::vector<Rank>> signature_groups(const Operation& operation) {
  std::vector<std::vector<Rank>> groups;
  const auto key = [&](Rank rank) {
    const Record& record = *operation[rank].submitted;
    return std::tuple(record.stage, record.detail, record.mask());
  };
  for (std::size_t i = 0; i < operation.size(); ++i) {
    const auto rank = static_cast<Rank>(i);
    if (!operation[i].submitted) continue;
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

std::vector<FlightBlame> blame_signatures(const Operation& operation) {
  const auto groups = signature_groups(operation);
  std::vector<FlightBlame> guilty;
  if (groups.size() < 2) return guilty;
  const auto usual = submitted_signature(*operation[groups[0][0]].submitted);
  // Of two equally large groups none is the usual one.
  const bool tie = groups[0].size() == groups[1].size();
  if (tie) {
    const auto other = submitted_signature(*operation[groups[1][0]].submitted);
    for (const Rank rank : groups[0]) {
      guilty.push_back({rank, first_difference(usual, other).value_or("another signature")});
    }
  }
  for (std::size_t i = 1; i < groups.size(); ++i) {
    const auto theirs = submitted_signature(*operation[groups[i][0]].submitted);
    for (const Rank rank : groups[i]) {
      guilty.push_back({rank, first_difference(theirs, usual).value_or("another signature")});
    }
  }
  return guilty;
}

std::vector<FlightBlame> blame_deaths(const FlightJob& job, const Operation& operation) {
  std::vector<FlightBlame> guilty;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    const OperationAtRank& at = operation[rank];
    if (died(job.ranks[rank]) && !at.ended) {
      const int signal = static_cast<int>(job.ranks[rank].dump->header.signal);
      guilty.push_back({static_cast<Rank>(rank),
                        fmt::format("died of signal {} ({}) {}", signal, ::strsignal(signal),
                                    at.opened ? "in it" : "before it")});
    } else if (at.ended && status_of(at) == Status::failed) {
      guilty.push_back({static_cast<Rank>(rank), "its port broke"});
    }
  }
  return guilty;
}

std::vector<FlightBlame> blame_aborts(const Operation& operation) {
  std::uint64_t origins = 0;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    const auto& abort = operation[rank].abort;
    if (!abort || abort->value == TARPON_ABORT_MISMATCH) continue;
    const bool named = abort->detail < operation.size();
    const auto self = abort->kind == RecordKind::abort_out ? rank : std::size_t{abort->peer};
    const std::size_t origin = named ? std::size_t{abort->detail} : self;
    if (origin < operation.size()) origins |= 1ull << origin;
  }
  std::vector<FlightBlame> guilty;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    if ((origins >> rank & 1) == 0) continue;
    const bool itself = operation[rank].presence == Presence::begun;
    guilty.push_back(
        {static_cast<Rank>(rank), itself ? "gave it up" : "gave it up, as the others were told"});
  }
  return guilty;
}

/// Whom a rank named at the end, or lacks so far.
std::uint64_t named_by(const Operation& operation, std::size_t rank) {
  const OperationAtRank& at = operation[rank];
  if (at.presence != Presence::begun) return 0;
  const std::uint64_t everybody = operation.size() >= 64 ? ~0ull : (1ull << operation.size()) - 1;
  return at.ended ? at.ended->mask() : at.lacks(everybody & ~(1ull << rank));
}

bool was_heard(const Operation& operation, std::size_t rank) {
  return std::any_of(operation.begin(), operation.end(), [rank](const OperationAtRank& other) {
    return (other.heard >> rank & 1) != 0;
  });
}

/// Whom at least half of the ranks that wait or waited in vain name. A rank that is cut off names
/// everybody else, and is named by all of them.
std::uint64_t most_named(const Operation& operation) {
  std::vector<std::size_t> votes(operation.size());
  std::size_t voters = 0;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    const std::uint64_t named = named_by(operation, rank);
    if (named == 0) continue;
    ++voters;
    for (std::size_t other = 0; other < operation.size(); ++other) {
      if (other != rank && (named >> other & 1) != 0) ++votes[other];
    }
  }
  std::uint64_t found = 0;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    if (votes[rank] > 0 && 2 * votes[rank] >= voters) found |= 1ull << rank;
  }
  return found;
}

/// Of those, the ranks that do not themselves wait for another of them.
std::vector<Rank> suspects(const FlightJob& job, const Operation& operation) {
  const std::uint64_t named = most_named(operation);
  std::uint64_t first = 0;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    const bool waits = job.ranks[rank].dump && was_heard(operation, rank) &&
                       (named_by(operation, rank) & named) != 0;
    if ((named >> rank & 1) != 0 && !waits) first |= 1ull << rank;
  }
  std::vector<Rank> found;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    if (((first != 0 ? first : named) >> rank & 1) != 0) found.push_back(static_cast<Rank>(rank));
  }
  return found;
}

/// What else is known of a rank that others have waited for.
std::string case_against(const FlightJob& job, const Operation& operation, Rank rank) {
  const OperationAtRank& at = operation[rank];
  const bool heard = was_heard(operation, rank);
  if (!job.ranks[rank].dump) {
    return heard ? "fell silent in it and left no recording: stopped, killed or cut off"
                 : "was never heard in it and left no recording: stopped, killed or cut off";
  }
  if (at.presence == Presence::never) return "never began it";
  if (!at.opened) return heard ? "fell silent in it" : "was never heard in it";
  const Duration behind = job.ranks[rank].at(*at.opened) - begin_of(job, operation);
  if (!heard) {
    return fmt::format("began it {:.3f} ms after the first and was never heard", ms(behind));
  }
  return fmt::format("began it {:.3f} ms after the first", ms(behind));
}

std::vector<FlightBlame> blame_absent(const FlightJob& job, const Operation& operation) {
  std::vector<FlightBlame> guilty;
  for (const Rank rank : suspects(job, operation)) {
    guilty.push_back({rank, case_against(job, operation, rank)});
  }
  if (!guilty.empty()) return guilty;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    if (operation[rank].presence == Presence::never) {
      guilty.push_back({static_cast<Rank>(rank), "never began it"});
    }
  }
  return guilty;
}

/// Nobody's silence is to blame where all were heard: what each has in hand decides.
std::string how_it_ended(const Operation& operation) {
  std::string text;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    const OperationAtRank& at = operation[rank];
    if (at.presence == Presence::unknown) continue;
    std::string_view word = "not begun";
    if (at.presence == Presence::begun) word = at.ended ? name(status_of(at)) : "still open";
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", rank, word);
  }
  return text;
}

/// How long the ranks have been in an operation that nobody has ended.
std::string age_text(const FlightJob& job, const Operation& operation) {
  Duration age{};
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    if (!operation[rank].opened || operation[rank].ended) continue;
    age = std::max(age, job.ranks[rank].dumped() - job.ranks[rank].at(*operation[rank].opened));
  }
  return fmt::format(" is still open after {:.3f} ms", ms(age));
}

std::string line_of(const FlightJob& job, const FlightVerdict& verdict, Kind kind,
                    const Operation& operation) {
  std::string who;
  for (const FlightBlame& one : verdict.guilty) {
    who += fmt::format("{}rank {}: {}", who.empty() ? "" : "; ", one.rank, one.why);
  }
  if (who.empty()) {
    who = kind == Kind::partial ? "packets were lost or came after the bound, all ranks took part"
                                : "no rank stands out";
  }
  return fmt::format("{}{}: {} (by rank: {})", operation_text(*verdict.operation),
                     kind == Kind::open ? age_text(job, operation) : "", who,
                     how_it_ended(operation));
}

}  // namespace

std::string operation_text(const OperationKey& key) {
  return key.first == kBarrierTag ? fmt::format("barrier {}", key.second)
                                  : fmt::format("operation {} of tag {}", key.second, key.first);
}

FlightVerdict judge_flight(const FlightJob& job) {
  const auto operations = operations_of(job);
  FlightVerdict verdict;
  Kind worst = Kind::alike;
  Time first = kNever;
  const Operation* chosen = nullptr;
  for (const auto& [key, operation] : operations) {
    const Kind kind =
        signature_groups(operation).size() > 1 ? Kind::failed : kind_of(job, operation);
    const Time begin = begin_of(job, operation);
    if (kind == Kind::alike || kind < worst || (kind == worst && begin >= first)) continue;
    worst = kind;
    first = begin;
    verdict.operation = key;
    chosen = &operation;
  }
  if (chosen == nullptr) {
    verdict.line = "nothing differs: every recorded operation is alike on all recorded ranks";
    return verdict;
  }
  // From the most certain evidence to the least.
  verdict.guilty = blame_signatures(*chosen);
  if (verdict.guilty.empty()) verdict.guilty = blame_deaths(job, *chosen);
  if (verdict.guilty.empty()) verdict.guilty = blame_aborts(*chosen);
  if (verdict.guilty.empty()) verdict.guilty = blame_absent(job, *chosen);
  verdict.line = line_of(job, verdict, worst, *chosen);
  return verdict;
}

}  // namespace tarpon
