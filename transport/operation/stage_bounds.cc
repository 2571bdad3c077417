#include "transport/operation/stage_bounds.h"

#include <algorithm>

namespace tarpon {
namespace {

constexpr int kAnswers = 10;  // waits for one, before a repair counts as gone
constexpr int kLooks = 4;     // in HoldPolicy::grace, at a stage that waits

/// Share of the data that `stage` receives that is missing and may still come.
double outstanding(const Operation& operation, const Stage& stage) {
  std::uint64_t slots = 0, missing = 0;
  for (const ReceiveMessage& message : stage.receives) {
    slots += message.slots();
    const bool apart = operation.peers[message.peer()].is_in_other_epoch();
    if (message.is_expected() && !apart) {
      missing += message.slots() - message.arrivals().presence().count();
    }
  }
  return missing == 0 ? 0 : static_cast<double>(missing) / static_cast<double>(slots);
}

}  // namespace

void StageBounds::set(Operation& operation, const StageEnds& ends, Time now) {
  operation.grace = ends.lateness.grace;
  if (operation.late) return;
  operation.hold = ends.hold;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) operation.stages[i].end = ends.at[i];
  alarm_.no_later_than(now);
}

void StageBounds::end(Operation& operation, std::size_t stage, Time now) {
  if (operation.late) return;
  Stage& ended = operation.stages[stage];
  ended.end = std::min(ended.end, now);
  alarm_.no_later_than(now);
  if (stage + 1 == operation.stage_count) lateness_.end_stage(operation, now);
}

void StageBounds::lift_last(Operation& operation) {
  Stage& last = operation.last_stage();
  last.end = kNever;
  last.early = Duration::zero();
}

Time StageBounds::run(Operation& operation, Time now) {
  Time next = kNever;
  for (std::size_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    if (stage.closed) continue;
    // Data that has come by the deadline is a result: the stages close before the deadline is told.
    const Time bound = std::min(stage.end, operation.deadline);
    const bool last = i + 1 == operation.stage_count;
    // A rank that has sent nothing of its last stage may be late. Only the bound ends that stage.
    const bool all_sent = stage.tails_missing == 0 && stage.early > Duration::zero() &&
                          !(last && nothing_sent(operation));
    // Slots that are asked for need time: until the request, and for the way there and back.
    const Duration silence =
        stage.repair ? std::max(stage.early, kAnswers * operation.gap_delay) : stage.early;
    const Time early = all_sent ? stage.last_arrival + silence : kNever;
    if ((stage.held || now >= std::min(bound, early)) && waits(operation, i, now)) {
      if (stage.held || now >= bound) extend(operation, i, now);
      next = std::min({next, stage.end, now + operation.hold.grace / kLooks});
    } else if (last && now >= std::min(bound, early) && lateness_.awaits_answers(operation, now)) {
      next = std::min({next, operation.inquiry.until, now < bound ? bound : kNever});
    } else if (now >= bound) {
      receiver_.close_stage(operation, stage, Closing::bound, now);
    } else if (now >= early) {
      receiver_.close_stage(operation, stage, Closing::early, now);
    } else {
      next = std::min({next, bound, early});
    }
  }
  return next;
}

/// Whether a stage, whose end has come, stays open: it lacks more than a bound may cut.
bool StageBounds::waits(const Operation& operation, std::size_t stage, Time now) {
  const HoldPolicy& hold = operation.hold;
  if (hold.above >= 1 || operation.late || now >= hold.until[stage]) return false;
  return outstanding(operation, operation.stages[stage]) > hold.above;
}

/// Moves the end of stage `first`, and of the stages after it.
void StageBounds::extend(Operation& operation, std::size_t first, Time now) {
  Stage& stage = operation.stages[first];
  const Time end = std::min(now + operation.hold.grace, operation.hold.until[first]);
  stage.held = true;
  if (end <= stage.end) return;  // an earlier stage has moved it further
  Event event;
  event.kind = Event::Kind::extended;
  event.stage = static_cast<std::uint8_t>(first);
  event.elapsed = end - stage.end;
  for (std::size_t i = first; i < operation.stage_count; ++i) {
    operation.stages[i].end += event.elapsed;
  }
  LatenessCheck::extended(operation, event.elapsed);
  journal_.tell(operation, event, now);
}

}  // namespace tarpon
