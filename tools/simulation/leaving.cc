#include "tools/simulation/leaving.h"

#include <algorithm>

#include "tools/simulation/simulated_call.h"

namespace tarpon {
namespace {

/// Whether the call ended with a result, not in doubt, under a bound. The judge checks that such a
/// call does not exceed its bound.
bool ended_by_bound(const Report& report) {
  const bool whole = report.status == Status::complete || report.status == Status::partial;
  return whole && report.bound > Duration::zero() && !report.in_doubt;
}

}  // namespace

Leaving::Leaving(const SimulationPlan& plan, const Ranks& ranks)
    : plan_(plan),
      ranks_(ranks),
      told_left_(plan.ranks, kNever),
      told_gone_(plan.ranks, kNever),
      passed_(plan.ranks, kNever) {}

/// When `rank` hears of what happened at the victim at `event`.
Time Leaving::news_at(Time event, Rank rank) const {
  return event + plan_.leave_news + plan_.leave_spread * rank / plan_.ranks;
}

/// Whether the victim has left and ended, or never will.
bool Leaving::settled() const {
  return plan_.leave_at == kNever || crashed_ || has_gone();
}

Time Leaving::next_news() const {
  Time next = kNever;
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (rank == plan_.victim) continue;
    if (has_left() && told_left_[rank] == kNever) next = std::min(next, news_at(left_at_, rank));
    if (has_gone() && told_gone_[rank] == kNever) next = std::min(next, news_at(gone_at_, rank));
  }
  return next;
}

/// When the victim knows that every other rank has passed its operations; its deadline at the
/// latest.
Time Leaving::may_go() const {
  Time last{};
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (rank == plan_.victim) continue;
    last = passed_[rank] == kNever ? kNever : std::max(last, news_at(passed_[rank], rank));
    if (last == kNever) break;
  }
  return std::min(last, left_at_ + kSimulationDeadline);
}

Time Leaving::next(Time now) const {
  if (plan_.leave_at == kNever) return kNever;
  if (!has_left()) {
    return crashed_ ? kNever : ranks_[plan_.victim]->may_run(std::max(now, plan_.leave_at));
  }
  const bool stays = settled() || may_go() <= now;  // until its calls have ended
  return std::min(next_news(), stays ? kNever : may_go());
}

bool Leaving::run(Time now, bool idle) {
  if (plan_.leave_at == kNever) return false;
  const SimulatedRank& victim = *ranks_[plan_.victim];
  if (!has_left() && !crashed_ && now >= plan_.leave_at && victim.may_run(now) <= now) {
    left_at_ = now;
    next_numbers_ = victim.unpassed();
  }
  if (!has_left()) return false;
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (rank == plan_.victim) continue;
    if (told_left_[rank] == kNever && news_at(left_at_, rank) <= now) {
      told_left_[rank] = now;
      ranks_[rank]->peer_left(plan_.victim, next_numbers_, now);
      ran(rank, now);
    }
    if (has_gone() && told_gone_[rank] == kNever && news_at(gone_at_, rank) <= now) {
      told_gone_[rank] = now;
      ranks_[rank]->peer_gone(plan_.victim, now);
    }
  }
  // If the plan has a crash, the victim waits for it.
  const bool waits_for_crash = plan_.crashes() && !crashed_;
  if (settled() || waits_for_crash || !idle || may_go() > now) return false;
  in_vain_ = now >= left_at_ + kSimulationDeadline;
  gone_at_ = now;
  return true;
}

/// Whether the answer of `rank` arrives before the victim's deadline, if `rank` passes at `passed`.
bool Leaving::is_in_time(Rank rank, Time passed) const {
  return passed != kNever && news_at(passed, rank) < left_at_ + kSimulationDeadline;
}

void Leaving::note(SimulatedCall& call) const {
  call.served_in_vain = in_vain_;
  if (call.pending[plan_.victim] || !has_left()) return;
  call.mismatched = call.refused = false;
  call.told_left = told_left_;
}

bool Leaving::waited_for_bounds(const std::vector<SimulatedCall>& calls) const {
  bool waited = false;
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (rank == plan_.victim || is_in_time(rank, passed_[rank])) continue;
    waited = std::any_of(calls.begin(), calls.end(), [&](const SimulatedCall& call) {
      return call.pending[plan_.victim] && call.ended[rank] != kNever &&
             !is_in_time(rank, call.ended[rank]) && ended_by_bound(call.pending[rank]->report);
    });
    if (!waited) return false;
  }
  return waited;
}

void Leaving::ran(Rank rank, Time now) {
  if (rank == plan_.victim || told_left_[rank] == kNever) return;
  if (ranks_[rank]->has_passed(plan_.victim)) passed_[rank] = std::min(passed_[rank], now);
}

void Leaving::evicted(Rank rank, Time now) {
  for (Rank other = 0; other < plan_.ranks; ++other) {
    if (rank == plan_.victim || other == rank) passed_[other] = std::min(passed_[other], now);
  }
}

}  // namespace tarpon
