#include "collectives/grid/grid_call.h"

#include <algorithm>
#include <new>
#include <utility>

#include "collectives/engine/kernels/reduce.h"
#include "collectives/engine/refusal.h"
#include "collectives/grid/grid_tags.h"
#include "transport/clock.h"

namespace tarpon::grid {
namespace {

bool is_final(Status status) {
  return status == Status::peer_dead || status == Status::peer_left || status == Status::evicted;
}

/// Whether a call in a host has ended because a rank came too late.
bool is_late(const Report& report) {
  if (report.status == Status::peer_late) return true;
  const AbortReason why = report.abort_reason;
  return report.status == Status::aborted &&
         (why == AbortReason::late || why == AbortReason::expired || why == AbortReason::deadline);
}

/// Whether this rank has no place on its rail any more.
bool is_out(const Report& report, Rank self) {
  if (report.status == Status::failed) return true;
  return report.status == Status::evicted &&
         std::find(report.blamed.begin(), report.blamed.end(), self) != report.blamed.end();
}

}  // namespace

bool divides_last(ReduceOp function, DataType type) {
  return function == ReduceOp::avg && !is_half(type);
}

GridCall::GridCall(Setting setting, Report empty, Duration deadline, const Counts& calls,
                   std::uint64_t slice)
    : parts_(setting.parts),
      tag_(empty.tag),
      submitted_(setting.submitted),
      deadline_(after(setting.submitted, deadline)),
      bounded_(setting.bounded),
      before_(std::move(setting.before)),
      pending_(std::make_shared<PendingCall>()),
      report_(setting.parts, std::move(empty), slice) {
  for (std::size_t stage = 0; stage < kStages; ++stage) stages_[stage].calls = calls[stage];
}

void GridCall::refuse(Status status, AbortReason reason, const std::vector<Rank>& blamed,
                      std::string detail) {
  report_.fail(status, reason, blamed, std::move(detail));
}

void GridCall::divide(void* sums, std::uint64_t elements, DataType type) const {
  if (elements == 0) return;
  reduce_kernels(type, ReduceOp::avg).scale(sums, sums, elements, 1, parts_.layout.world_size());
}

/// After a failure each stage has a call at least, which tells the other ranks.
std::uint64_t GridCall::calls(const Progress& stage) const {
  return report_.has_failed() ? std::max<std::uint64_t>(stage.calls, 1) : stage.calls;
}

bool GridCall::has_started_all(Stage stage) const {
  return given_up_ || stages_[stage].started >= calls(stages_[stage]);
}

/// Whether the stages before have ended what the next call of `stage` needs.
bool GridCall::is_ready(Stage stage) const {
  const std::uint64_t needed = stages_[stage].started + 1;
  return std::all_of(stages_.begin(), stages_.begin() + stage, [&](const Progress& earlier) {
    return earlier.ended >= std::min(needed, earlier.calls);
  });
}

bool GridCall::can_start(Stage stage, Time now) const {
  if (has_started_all(stage)) return false;
  if (before_ != nullptr && !before_->has_started_all(stage)) return false;
  if (report_.has_failed()) return now >= refuse_from_;
  return stages_[stage].running.size() < kAtOnce && is_ready(stage);
}

bool GridCall::advance(Time now, bool aborted) {
  if (aborted) give_up();
  bool moved = false;
  for (const Stage stage : {scatter, rail, gather}) {
    while (take_ended(stage, now)) moved = true;
    while (can_start(stage, now)) {
      start(stage, now);
      moved = true;
    }
  }
  return moved;
}

bool GridCall::is_over() const {
  return std::all_of(stages_.begin(), stages_.end(), [&](const Progress& stage) {
    return stage.running.empty() && (given_up_ || stage.ended >= calls(stage));
  });
}

void GridCall::finish(Time now, const std::optional<Ending>& ending) {
  before_.reset();
  const bool whole = std::all_of(stages_.begin(), stages_.end(),
                                 [](const Progress& stage) { return stage.ended >= stage.calls; });
  if (!whole) {
    report_.fail(ending
                     ? *ending
                     : Ending{.blamed = {parts_.self}, .detail = "the communicator was destroyed"});
  }
  if (ending) report_.blame(*ending);
  report_.finish(now - submitted_);
  pending_->report = report_.report();
  pending_->end();
}

/// Takes the end of the oldest call of a stage, if it has ended.
bool GridCall::take_ended(Stage stage, Time now) {
  Progress& own = stages_[stage];
  if (own.running.empty() || !own.running.front()->done) return false;
  const std::shared_ptr<PendingCall> call = std::move(own.running.front());
  own.running.pop_front();
  const std::uint64_t index = own.ended++;
  if (!has_result(call->report.status)) {
    note_failure(stage, call->report, now);
  } else if (!report_.has_failed()) {
    const std::uint64_t elements = note_end(stage, index);
    if (stage == rail) report_.add(call->report, elements);
  }
  return true;
}

void GridCall::note_failure(Stage stage, const Report& report, Time now) {
  if (report_.has_failed()) return;
  if (report.status == Status::aborted && report.abort_reason == AbortReason::given_up) {
    refuse_from_ = now + kAbortNews;
  }
  if (stage == rail) {
    lost_rail_ = is_out(report, host());
    if (lost_rail_) lose_host(report.status);
    return report_.fail(report, parts_.rail_ranks(), report.stage);
  }
  if (is_final(report.status) || (bounded_ && is_late(report))) lose_host(report.status);
  report_.fail(report, parts_.host_ranks(),
               stage == scatter ? CallStage::scatter : CallStage::gather);
}

/// No refused calls follow, which would end those of the other hosts.
void GridCall::lose_host(Status status) {
  host_loss_ = status;
  give_up();
}

/// Call `index` of a stage. After a failure, or where memory for it is refused, a refused one.
CallArguments GridCall::next_call(Stage stage, std::uint64_t index) {
  if (!report_.has_failed()) {
    try {
      return make(stage, index);
    } catch (const std::bad_alloc&) {
      const Refusal why = no_memory();
      report_.fail(Status::aborted, why.reason, {parts_.self}, why.detail);
    }
  }
  return AllreduceArguments{.refusal = "failed"};  // short enough to need no memory
}

/// Starts the next call of a stage.
void GridCall::start(Stage stage, Time now) {
  if (now >= deadline_ && !report_.has_failed()) {
    report_.fail(Status::peer_late, AbortReason::given_up, {},
                 "the deadline passed between two stages of the call");
    if (bounded_) return lose_host(Status::peer_late);
  }
  Progress& own = stages_[stage];
  const std::uint64_t index = own.started++;
  CallArguments call = next_call(stage, index);
  call.tag = stage == scatter ? scatter_tag(tag_) : stage == rail ? tag_ : gather_tag(tag_);
  call.deadline = std::max<Duration>(deadline_ - now, 1ms);
  if (call.bound) call.bound = std::min(*call.bound, call.deadline);
  own.running.push_back((stage == rail ? parts_.rail : parts_.host)->submit(call));
}

}  // namespace tarpon::grid
