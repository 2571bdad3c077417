#include "tools/flight/case.h"

#include <algorithm>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

/// The last call that `rank` ended before `time`, whatever its tag.
void find_previous(const FlightRank& rank, const OperationKey& key, Time time,
                   FlightWitness& witness) {
  for (const Record& record : rank.dump->records) {
    const OperationKey other{record.tag, record.operation};
    const Time at = rank.at(record);
    if (record.kind != RecordKind::ended || other == key || at > time) continue;
    if (witness.previous_end && at < *witness.previous_end) continue;
    witness.previous = other;
    witness.previous_end = at;
  }
}

/// How long after the first rank's call each rank made its own, in the operations before `begin`.
void measure_delays(const FlightJob& job, const FlightOperations& operations, Time begin,
                    std::vector<FlightWitness>& witnesses) {
  for (const auto& [key, operation] : operations) {
    const Time first = begin_of(job, operation);
    if (first >= begin) continue;
    for (std::size_t rank = 0; rank < operation.size(); ++rank) {
      if (!operation[rank].submitted || !witnesses[rank].placed) continue;
      const Duration delay = job.ranks[rank].at(*operation[rank].submitted) - first;
      witnesses[rank].usual_delay = std::max(witnesses[rank].usual_delay, delay);
    }
  }
}

std::uint64_t everybody_but(std::size_t ranks, std::size_t rank) {
  return first_ranks(static_cast<std::uint32_t>(ranks)) & ~(1ull << rank);
}

}  // namespace

bool is_failure(Status status) {
  return status != Status::complete && status != Status::partial && status != Status::late_self;
}

bool died_of_signal(const FlightRank& rank) {
  constexpr std::uint32_t kTerminate = 15;
  return rank.dump && rank.dump->header.reason == DumpReason::fatal &&
         rank.dump->header.signal != kTerminate;
}

double to_ms(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

namespace {

/// The ranks that no longer answered when the recording was made. Bit r: rank r.
std::uint64_t silent_ranks(const FlightDump& dump) {
  std::uint64_t ranks = 0;
  for (const Record& record : dump.records) {
    if (record.kind != RecordKind::silence || record.peer >= 64) continue;
    const std::uint64_t mask = std::uint64_t{1} << record.peer;
    ranks = record.value != 0 ? ranks | mask : ranks & ~mask;
  }
  return ranks;
}

}  // namespace

FlightCase::FlightCase(const FlightJob& job, const FlightOperations& operations,
                       const OperationKey& key, FlightTrouble trouble)
    : job_(job), key_(key), trouble_(trouble), witnesses_(job.ranks.size()) {
  for (std::size_t rank = 0; rank < size(); ++rank) witness(operations, rank);
  for (std::size_t rank = 0; rank < size(); ++rank) note_rank_wide(rank);
  find_window();
  measure_delays(job, operations, begin_, witnesses_);
}

void FlightCase::witness(const FlightOperations& operations, std::size_t rank) {
  FlightWitness& one = witnesses_[rank];
  const FlightRank& of = job_.ranks[rank];
  one.at = &operations.at(key_)[rank];
  if (!of.dump) return;
  one.known = one.at->presence != OperationAtRank::Presence::unknown;
  one.placed = one.known && of.clock.clock != FlightClock::unrelated;
  if (one.at->submitted) one.submitted = of.at(*one.at->submitted);
  if (one.at->opened) one.opened = of.at(*one.at->opened);
  if (!one.submitted) one.submitted = one.opened;
  if (one.at->ended) one.ended = of.at(*one.at->ended);
  one.until = one.ended.value_or(of.dumped());
  if (one.at->ended) {
    one.lacks = one.at->ended->mask();
  } else if (one.at->opened) {
    one.lacks = one.at->lacks(everybody_but(size(), rank));
    // A call through the memory of a host asks for nothing by packets. It waits for silent ranks.
    if (one.lacks == 0) one.lacks = silent_ranks(*of.dump);
  }
  if (one.at->ended && one.lacks == 0) one.lacks = one.at->lacked;
  one.lacks &= everybody_but(size(), rank);
  find_previous(of, key_, one.submitted.value_or(one.until), one);
  if (one.placed) tolerance_ = std::max(tolerance_, 2 * of.clock.uncertainty);
}

void FlightCase::note_rank_wide(std::size_t rank) {
  const FlightRank& of = job_.ranks[rank];
  if (!of.dump) return;
  for (const Record& record : of.dump->records) {
    const Time at = of.at(record);
    if (record.kind == RecordKind::pause) {
      const Duration length = std::chrono::microseconds(record.value);
      witnesses_[rank].pauses.push_back({at - length, at, std::chrono::microseconds(record.extra)});
    } else if (record.kind == RecordKind::send_refused) {
      witnesses_[rank].refusals.push_back({at, record.detail, record.value});
    } else if (record.kind == RecordKind::standing && record.peer < size() &&
               record.detail <= static_cast<std::uint8_t>(Standing::dead)) {
      witnesses_[record.peer].standings.push_back(
          {static_cast<Rank>(rank), static_cast<Standing>(record.detail), at});
    }
  }
}

void FlightCase::find_window() {
  const auto earliest_end = [&](bool failures_only) {
    Time first = kNever;
    for (const FlightWitness& one : witnesses_) {
      if (!one.ended || !one.placed) continue;
      const auto status = static_cast<Status>(one.at->ended->detail);
      if (failures_only ? !is_failure(status) : status == Status::complete) continue;
      first = std::min(first, *one.ended);
    }
    return first;
  };
  Time last = Time::min();
  for (const FlightWitness& one : witnesses_) {
    if (!one.placed) continue;
    if (one.submitted) begin_ = std::min(begin_, *one.submitted);
    last = std::max(last, one.until);
  }
  failed_ = earliest_end(true);
  if (failed_ == kNever) failed_ = trouble_ == FlightTrouble::partial ? earliest_end(false) : last;
  for (const FlightWitness& one : witnesses_) {
    if (!one.ended || *one.ended != failed_) continue;
    const auto status = static_cast<Status>(one.at->ended->detail);
    ran_out_of_time_ = !is_failure(status) || status == Status::peer_late;
  }
  const bool died = std::any_of(job_.ranks.begin(), job_.ranks.end(), died_of_signal);
  if (died && earliest_end(true) == kNever) ran_out_of_time_ = false;
  if (begin_ == kNever) begin_ = failed_ == kNever ? Time{} : failed_;
  if (failed_ == kNever || failed_ < begin_) failed_ = begin_;
}

std::vector<Record> FlightCase::records_with(Rank rank, Rank peer) const {
  std::vector<Record> found;
  if (!witnesses_[rank].known) return found;
  for (const Record& record : job_.ranks[rank].dump->records) {
    const bool here = OperationKey{record.tag, record.operation} == key_;
    if (here && record.peer == peer && !is_rank_wide(record.kind)) found.push_back(record);
  }
  return found;
}

std::optional<Duration> FlightCase::unheard_for(Rank rank, Rank peer) const {
  for (const Record& record : records_with(rank, peer)) {
    if (record.kind != RecordKind::lacked) continue;
    if (record.value == ~0u) return Duration::max();
    return std::chrono::microseconds(record.value);
  }
  return std::nullopt;
}

bool FlightCase::was_awaited(Rank rank) const {
  std::uint64_t awaited = 0;
  bool others_failed = false;
  for (std::size_t other = 0; other < size(); ++other) {
    const FlightWitness& one = witnesses_[other];
    if (other == rank || !one.known || !one.at->opened) continue;
    const bool well = one.at->ended && one.at->ended->detail == 0;
    others_failed |= !well;
    if (!well) awaited |= one.lacks;
  }
  if (!others_failed) return true;  // only the rank itself lacked something
  for (std::uint64_t before = 0; before != awaited;) {
    before = awaited;
    for (std::size_t other = 0; other < size(); ++other) {
      if (other != rank && (before >> other & 1) != 0) awaited |= witnesses_[other].lacks;
    }
  }
  return (awaited >> rank & 1) != 0;
}

bool FlightCase::was_heard(Rank rank) const {
  return std::any_of(witnesses_.begin(), witnesses_.end(),
                     [rank](const FlightWitness& one) { return (one.at->heard >> rank & 1) != 0; });
}

}  // namespace tarpon
