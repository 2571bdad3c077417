#include "collectives/engine/bounded/bound_clock.h"

#include <algorithm>

#include "collectives/engine/schedules/tar_shards.h"
#include "collectives/step_verdict.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

constexpr Duration kLeastGrace = 1ms;  // the last slots of a late rank may need a repair

}  // namespace

BoundedCall BoundClock::bounded_call() const {
  return {call_.arguments.bound_rule, call_.arguments.bound, call_.kind, call_.coding};
}

void BoundClock::plan(OperationSpec& spec, Time now) {
  const Duration left = std::max(Duration::zero(), call_.deadline - now);
  const BoundPlan plan = call_.bounds.plan(bounded_call(), left);
  terms_ = plan.terms;
  before_ = plan.before;
  spec.bound = plan.terms.whole;
  spec.terms = encode(plan.terms);
  spec.tells_terms = plan.tells;
  spec.stage_time = plan.stage_time;
  for (std::size_t stage = 0; stage < plan.early.size(); ++stage) {
    spec.early[stage] = plan.early[stage];
    call_.report.stages[stage].early = plan.early[stage];
  }
}

void BoundClock::start(Time at, const std::function<Duration()>& work_left, Time now) {
  const CallBound bound = agree(at);
  started_ = at;
  end_ = after(at, bound.whole);
  StageEnds ends;
  ends.at[kScatter] = end_ - bound.gather;
  ends.at[kGather] = gather_due_ = end_;
  ends.hold = hold_policy(bound, work_left);
  tolerated_ = ends.hold.above;
  for (const std::size_t stage : {kScatter, kGather}) {
    latest_[stage] = waits_for_live() ? ends.hold.until[stage] : ends.at[stage];
  }
  // A rank that begins after the scatter adds nothing, and the scatter may wait for it until then.
  // A rank that has not sent its shard asks when half of the gather is left.
  ends.lateness = {.late_after = waits_for_live() ? ends.hold.until[kScatter] : ends.at[kScatter],
                   .notice = bound.gather / 2,
                   .grace = bound.grace};
  call_.report.bound = bound.whole;
  call_.report.clock_start = at - call_.submitted;
  call_.report.stages[kScatter].bound = bound.whole - bound.gather;
  call_.report.stages[kGather].bound = ends.at[kGather] - at;
  call_.endpoint.set_ends(call_.handle, ends, now);
  look_at_ = now;
}

/// Terms that are new in this call count where ranks of the first half told them.
CallBound BoundClock::agree(Time at) {
  const OperationView operation = call_.endpoint.view(call_.handle);
  const std::uint64_t first = operation.first_half();
  std::uint64_t live = ~call_.endpoint.peers().silent();
  for (Rank peer = 0; peer < call_.world; ++peer) {
    if (peer == call_.rank) continue;
    if (operation.takes_no_part(peer)) live &= ~bit(peer);
    if ((first & bit(peer)) != 0) hear_terms(peer);
  }
  const bool counts = (first & bit(call_.rank)) != 0;
  const Duration left = std::max(Duration::zero(), call_.deadline - at);
  const CallBound bound = call_.bounds.agree(bounded_call(), counts ? terms_ : before_, live, left);
  for (Rank peer = 0; peer < call_.world; ++peer) {
    if (peer != call_.rank) hear_terms(peer);
  }
  return bound;
}

/// A bound that the caller gave is kept, alone or beside a learnt one. A learnt one ends no call of
/// which a training step could not use the result. Each of two stages may lack half of what a step
/// may lack. A call without repair does not wait, since a lost slot never comes. A rank that does
/// not watch for silent ranks does not wait either, since only the deadline would end that wait.
/// The scatter's limit leaves the time of the gather before the deadline. Both limits leave the
/// time of the work on the buffers, as if none of it were done yet.
HoldPolicy BoundClock::hold_policy(const CallBound& bound,
                                   const std::function<Duration()>& work_left) const {
  const AllreduceArguments& arguments = call_.arguments;
  const bool repaired = call_.mechanisms.repair && call_.mechanisms.scatter_repair;
  if (!Bounds::waits_for_data(arguments.bound_rule) || arguments.bound || !repaired ||
      !call_.endpoint.peers().detects_silence()) {
    return {};
  }
  // A target that has grown changes no budget of steps.
  const double target = std::min(call_.mechanisms.loss_target, call_.bounds.loss_target());
  const int stages = call_.kind.gathers() ? 2 : 1;
  HoldPolicy hold{.above = LossBudget::usual(target).skip_above / stages,
                  .grace = std::max(kLeastGrace, bound.whole / 4)};
  hold.until[kGather] = call_.deadline - std::min(work_left(), bound.whole / 2);
  hold.until[kScatter] = hold.until[kGather] - bound.gather;
  return hold;
}

void BoundClock::extend(Duration by, Time now) {
  end_ = after(end_, by);
  gather_due_ = after(gather_due_, by);
  call_.report.held += by;
  look_at_ = now;
}

void BoundClock::close_for_work(Duration work_left, Time now) {
  // Work that takes more than three quarters of the call ends after the bound, whatever is cut.
  look_at_ = end_ - std::min(work_left, 3 * whole() / 4);
  if (now < look_at_) return;
  for (const std::size_t stage : {kScatter, kGather}) {
    call_.endpoint.end_stage(call_.handle, stage, now);
  }
  gather_due_ = now;
  look_at_ = kNever;
}

void BoundClock::hear_terms(Rank peer) {
  const std::optional<CallTerms> terms = call_.endpoint.view(call_.handle).terms(peer);
  if (!terms || *terms == CallTerms{} || (terms_heard_ & bit(peer)) != 0) return;
  terms_heard_ |= bit(peer);
  call_.bounds.heard(peer, call_.kind, decode(*terms));
}

}  // namespace tarpon
