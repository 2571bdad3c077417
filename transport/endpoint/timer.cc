// Time: deadlines, bounds, announcements without an answer, slots that did not come.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

constexpr int kAnswers = 10;  // waits for one, before a repair counts as gone
constexpr int kLooks = 4;     // in HoldPolicy::grace, at a stage that waits

}  // namespace

void Endpoint::on_timer(Time now) {
  state_->latest = now;
  if (now >= next_deadline()) state_->run_timers(now);
}

Time Endpoint::next_deadline() const {
  // Packets that are due are polled before the driver sleeps; only time is reported here.
  return std::min({state_->timer, state_->receiver.next(), state_->lateness.next()});
}

void Endpoint::State::run_timers(Time now) {
  Time next = kNever;
  for (Operation* operation : open_operations) {
    next = std::min(next, time_operation(*operation, now));
  }
  timer = next;
  receiver.looked();
  lateness.looked();
  passed_news.run(now, control);
  check_silence(now);
  timer = std::min(timer, passed_news.next());
  if (options.detects_silence) timer = std::min(timer, liveness.next());
  receiver.give_credit(open_operations, now);
}

Time Endpoint::State::time_operation(Operation& operation, Time now) {
  Time next = lateness.run(operation, now);
  if (operation.bounded && operation.started != kNever) {
    next = std::min(next, time_stages(operation, now));
  }
  if (!operation.deadline_told) {
    if (now >= operation.deadline) {
      operation.deadline_told = true;
      Event event;
      event.kind = Event::Kind::deadline;
      tell(operation, event);
      return kNever;
    }
    next = std::min(next, operation.deadline);
  }
  ask_who_has_passed(operation, now);
  next = std::min(next, ask_for_confirmations(operation, now));
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    PeerView& view = operation.peers[peer];
    if (now >= view.ready_at) send_ready(operation, peer, now);
    next = std::min(next, view.ready_at);
  }
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    if (stage.closed) continue;
    for (ReceiveMessage& message : stage.receives) {
      if (!operation.peers[message.peer].heard) continue;
      next = std::min(next,
                      receiver.time_message(operation, static_cast<std::uint8_t>(i), message, now));
    }
  }
  return next;
}

/// Queues a READY. When there is no room for it, it goes out after a while.
void Endpoint::State::send_ready(Operation& operation, Rank peer, Time now) {
  PeerView& view = operation.peers[peer];
  if (!control.push(ControlDue{.type = TARPON_READY,
                               .peer = peer,
                               .tag = operation.tag,
                               .operation = operation.number,
                               .repeats = view.readies})) {
    view.ready_at = now + operation.gap_delay;
    return;
  }
  view.ready_us = microseconds(now);
  view.ready_at =
      now + backed_off(operation.quiet_delay, view.readies, receiver.longest_delay(operation));
  ++view.readies;
}

/// Bounded: ends the stages whose time is up, but not the last one while peers are asked whether
/// this rank is late.
Time Endpoint::State::time_stages(Operation& operation, Time now) {
  Time next = kNever;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
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
    } else if (last && now >= std::min(bound, early) && lateness.awaits_answers(operation, now)) {
      next = std::min({next, operation.inquiry.until, now < bound ? bound : kNever});
    } else if (now >= bound) {
      receiver.close_stage(operation, stage, Closing::bound, now);
    } else if (now >= early) {
      receiver.close_stage(operation, stage, Closing::early, now);
    } else {
      next = std::min({next, bound, early});
    }
  }
  return next;
}

/// Share of what `stage` receives that is missing and may still come.
double Endpoint::State::outstanding(const Operation& operation, const Stage& stage) const {
  std::uint64_t slots = 0, missing = 0;
  for (const ReceiveMessage& message : stage.receives) {
    slots += message.slots;
    const bool apart = operation.peers[message.peer].other_epoch;
    if (!message.final && !apart) missing += message.slots - message.presence.count();
  }
  return missing == 0 ? 0 : static_cast<double>(missing) / static_cast<double>(slots);
}

/// Whether stage `number`, whose end has come, stays open: it lacks more than a bound may cut.
bool Endpoint::State::waits(const Operation& operation, std::uint32_t number, Time now) const {
  const HoldPolicy& hold = operation.hold;
  if (hold.above >= 1 || operation.late || now >= hold.until[number]) return false;
  return outstanding(operation, operation.stages[number]) > hold.above;
}

/// Moves the end of stage `first`, and of the stages after it.
void Endpoint::State::extend(Operation& operation, std::uint32_t first, Time now) {
  Stage& stage = operation.stages[first];
  const Time end = std::min(now + operation.hold.grace, operation.hold.until[first]);
  stage.held = true;
  if (end <= stage.end) return;  // an earlier stage has moved it further
  Event event;
  event.kind = Event::Kind::extended;
  event.stage = static_cast<std::uint8_t>(first);
  event.elapsed = end - stage.end;
  for (std::uint32_t i = first; i < operation.stage_count; ++i) {
    operation.stages[i].end += event.elapsed;
  }
  LatenessCheck::extended(operation, event.elapsed);
  tell(operation, event);
}

/// Asks for confirmations when this rank has all that it receives, but not all of them. Receivers
/// that have a message answer repeated READYs by a confirmation, those that have closed the
/// operation by CLOSED.
Time Endpoint::State::ask_for_confirmations(Operation& operation, Time now) {
  if (!operation.forwards) return kNever;
  bool unconfirmed = false;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    const Stage& stage = operation.stages[i];
    if (!stage.closed) return kNever;
    for (const SendMessage& message : stage.sends) {
      if (!stage.acknowledge || message.done) continue;
      unconfirmed = true;
      PeerView& view = operation.peers[message.peer];
      if (message.next < message.slots || view.ready_at != kNever) continue;
      view.readies = std::max(1u, view.readies);
      view.ready_at = now + operation.quiet_delay;
    }
  }
  return unconfirmed ? now + operation.quiet_delay : kNever;
}

void Endpoint::State::ask_who_has_passed(Operation& operation, Time now) {
  // A caller that keeps a finished operation open may be waiting for room to retain it. Peers that
  // are silent on this tag are asked how far they are: a repeated READY is answered.
  const Channel* channel = tags.find(operation.tag);
  if (channel->kept.empty()) return;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    if (!operation.stages[i].closed) return;
  }
  const std::uint32_t oldest = channel->kept.front().number;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    PeerView& view = operation.peers[peer];
    if (peer == options.rank || view.ready_at != kNever) continue;
    if (before(oldest, passed_by(*channel, peer, standings))) continue;
    view.readies = std::max(1u, view.readies);
    view.ready_at = now + operation.quiet_delay;
  }
}

}  // namespace tarpon
