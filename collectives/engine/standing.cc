// Ends calls of an engine, or goes on with them, when they are given up, when its port breaks, and
// when ranks die, are evicted, leave or fall silent.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "collectives/engine/call/running_call.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/flight_events.h"
#include "transport/rank_mask.h"

namespace tarpon {

void Engine::abort(Time now) {
  give_up(options_.endpoint.rank, "given up by this rank", now);
}

void Engine::drop_calls(Time now) {
  abort(now);
  for (const auto& operation : running_) {
    port_.drop_unsent(lender_of(operation->handle()));
    operation->drop_work(now);
    hand_back(*operation, now);
  }
  running_.clear();
}

/// Marks a call as done. REQUIRES: its output is complete, or it has no result.
void Engine::hand_back(RunningCall& operation, Time now) {
  record_ended(options_.endpoint.recorder, operation.call().report, now);
  operation.release(now);
}

void Engine::abort_for_good(Rank origin, const std::string& reason, Time now) {
  if (aborted_) return;
  const std::string who =
      origin == options_.endpoint.rank ? "this rank" : fmt::format("rank {}", origin);
  aborted_ = Ending{Status::aborted, {origin}, fmt::format("{} aborted: {}", who, reason)};
  give_up(origin, aborted_->detail, now);
  forget_waiting();
}

void Engine::give_up(Rank origin, const std::string& detail, Time now) {
  for (const auto& operation : running_) operation->give_up(origin, detail, now);
  end_waiting({Status::aborted, {origin}, detail}, now);
}

/// Drops the calls that wait, once no later call needs a number. REQUIRES: they are over.
void Engine::forget_waiting() {
  waiting_.clear();
  over_waiting_ = 0;
}

/// The peers are not told: one that does not know of the exclusion yet need not end its calls.
void Engine::end_by_exclusion(const Fact& own, Time now) {
  if (aborted_) return;
  const Rank self = options_.endpoint.rank;
  aborted_ = Ending{
      Status::evicted,
      {self},
      fmt::format("this rank is {}: {}; the others go on without it, and it misses "
                  "this operation and all later ones: {}",
                  own.standing == Standing::dead ? "dead to the others" : "evicted", own.evidence,
                  options_.endpoint.communicator == 0 ? "rejoin(), then resync()"
                                                      : "split() the job anew, with a new number")};
  handle_events(now);  // a call whose result is whole still ends with it
  for (const auto& operation : running_) {
    operation->evicted(aborted_->detail, now);
    Report& report = operation->call().report;
    if (report.status != Status::evicted) continue;
    missed_.note(report, next_unbegun(report.tag), endpoint_.furthest(report.tag));
  }
  end_waiting(*aborted_, now);
  forget_waiting();
}

void Engine::learn(const Fact& fact, Time now) {
  const Rank self = options_.endpoint.rank;
  if (fact.rank >= facts_.world_size() || !facts_.learn(fact)) return;
  record_standing(options_.endpoint.recorder, fact.rank, fact.standing, now);
  if (fact.rank == self) {
    if (fact.standing > Standing::left) end_by_exclusion(fact, now);
    return;
  }
  handle_events(now);  // a result that is whole needs no peer
  note_absent(fact.rank);
  if (facts_.of(fact.rank).serves) {
    endpoint_.peer_left(fact.rank, fact.next_numbers, now);
    departures_.left(fact.rank, fact.next_numbers);
  } else {
    endpoint_.peer_dead(fact.rank, now);
    departures_.gone(fact.rank);
  }
  // Exact calls end before they hear that their stages have closed without that rank.
  for (const auto& operation : running_) operation->peers_gone(facts_, now);
}

std::vector<NextNumber> Engine::unpassed() const {
  if (broken_ || aborted_) return {};  // nothing is served any more
  std::vector<NextNumber> result = endpoint_.unpassed();
  for (const Waiting& waiting : waiting_) {  // the endpoint may not know its tag yet
    const std::uint32_t tag = waiting.call->arguments.tag;
    const bool known = std::any_of(result.begin(), result.end(),
                                   [tag](const NextNumber& one) { return one.tag == tag; });
    if (!known) result.push_back({tag, 0});
  }
  for (NextNumber& one : result) one.number = next_number(one.tag);
  return result;
}

std::uint64_t Engine::take_passed() {
  return broken_ || aborted_ ? departures_.take_all() : departures_.take_passed(endpoint_);
}

std::uint64_t Engine::awaited() const {
  std::uint64_t ranks = 0;
  for (const auto& operation : running_) {
    if (operation->over() || operation->call().report.mode != Mode::exact) continue;
    ranks |= mask_of(operation->absent_ranks());
  }
  return ranks & endpoint_.silent();
}

void Engine::note_silent(Rank rank, bool silent, Time now) {
  record_silence(options_.endpoint.recorder, rank, silent, now);
  if (silent) {
    note_absent(rank);
  } else if (facts_.is_live(rank)) {
    absent_ &= ~bit(rank);
  }
}

/// Notes that `rank` is absent: the times of calls that wait for it teach nothing.
void Engine::note_absent(Rank rank) {
  absent_ |= bit(rank);
  bounds_->absent(rank);
  for (const auto& operation : running_) operation->rank_absent(rank);
}

void Engine::fail_all(Time now, const Error& error) {
  broken_ = Ending{Status::failed, {}, error.message};
  record_port_failed(options_.endpoint.recorder, now);
  for (const auto& operation : running_) {
    operation->end(Status::failed, error.message, now);
    port_.drop_unsent(lender_of(operation->handle()));
    while (!operation->complete(now)) operation->work().run_all();
    hand_back(*operation, now);
  }
  running_.clear();
  end_waiting(*broken_, now);
  forget_waiting();
}

}  // namespace tarpon
