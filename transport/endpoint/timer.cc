// Time: deadlines, bounds, announcements that nobody answered, slots that did not come.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

/// `first` doubled `times` times, at most `most`.
Duration backed_off(Duration first, std::uint32_t times, Duration most) {
  Duration delay = first;
  for (std::uint32_t i = 0; i < times && delay < most; ++i) delay *= 2;
  return std::min(delay, most);
}

}  // namespace

void Endpoint::on_timer(Time now) {
  state_->latest = now;
  if (now >= state_->timer) state_->run_timers(now);
}

Time Endpoint::next_deadline() const {
  // Packets that are due are polled before anybody sleeps; only time is reported here.
  return state_->timer;
}

std::uint32_t Endpoint::State::credit_window(std::uint32_t slot_bytes) const {
  const std::uint64_t share = receive_bytes / std::max(1u, open_receives);
  const std::uint64_t slots = share / (slot_bytes + TARPON_HEADER_BYTES);
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(
      options.initial_credit, std::min<std::uint64_t>(slots, kAllSlots / 2)));
}

void Endpoint::State::start_clock(Operation& operation, Time now) {
  // A bounded operation begins when half of the ranks have: one early rank must not cost
  // everybody's data.
  if (!operation.bounded || operation.started != kNever) return;
  if (2u * operation.heard < options.world_size) return;
  operation.started = now;
  timer = now;
}

void Endpoint::State::run_timers(Time now) {
  Time next = kNever;
  for (Operation* operation : open_operations) {
    next = std::min(next, time_operation(*operation, now));
  }
  timer = next;
}

Time Endpoint::State::time_operation(Operation& operation, Time now) {
  Time next = kNever;
  if (operation.started != kNever) {
    Time bound = operation.started;
    for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
      Stage& stage = operation.stages[i];
      // What has come by the deadline is a result: the stages close before it is told.
      bound = std::min(bound + stage.bound, operation.deadline);
      if (stage.closed) continue;
      if (now >= bound) {
        close_stage(operation, stage);
      } else {
        next = std::min(next, bound);
      }
    }
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
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    PeerView& view = operation.peers[peer];
    if (now >= view.ready_at) {
      queue_control({.type = TARPON_READY,
                     .peer = peer,
                     .tag = operation.tag,
                     .operation = operation.number,
                     .slot = view.readies});
      view.ready_at =
          now + backed_off(operation.quiet_delay, view.readies, operation.repair_delay_max);
      ++view.readies;
    }
    next = std::min(next, view.ready_at);
  }
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    if (stage.closed) continue;
    for (ReceiveMessage& message : stage.receives) {
      if (!operation.peers[message.peer].heard) continue;
      next = std::min(next, time_message(operation, static_cast<std::uint8_t>(i), message, now));
    }
  }
  return next;
}

void Endpoint::State::ask_who_has_passed(Operation& operation, Time now) {
  // Whoever keeps a finished operation open may be waiting for room to retain it. Peers that are
  // silent on this tag are asked how far they are: a repeated READY is answered.
  const Channel* channel = find_channel(operation.tag);
  if (channel->kept.empty()) return;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    if (!operation.stages[i].closed) return;
  }
  const std::uint32_t oldest = channel->kept.front().number;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    PeerView& view = operation.peers[peer];
    if (peer == options.rank || view.ready_at != kNever) continue;
    if (before(oldest, channel->closed_below_of[peer])) continue;
    view.readies = std::max(1u, view.readies);
    view.ready_at = now + operation.quiet_delay;
  }
}

Time Endpoint::State::message_due(const Operation& operation, const ReceiveMessage& message) const {
  const Duration most = operation.repair_delay_max;
  if (message.asks > 0 || message.repair_below == 0) {
    return std::max(message.asked, message.last_heard) +
           backed_off(operation.quiet_delay, message.asks, most);
  }
  const Time quiet = message.last_heard + operation.quiet_delay;
  return message.gap_since == kNever ? quiet
                                     : std::min(quiet, message.gap_since + operation.gap_delay);
}

Time Endpoint::State::time_message(Operation& operation, std::uint8_t stage,
                                   ReceiveMessage& message, Time now) {
  if (message.final || message.presence.complete()) return kNever;
  if (now >= message_due(operation, message)) {
    // Where nothing may be asked for again, the sender may still lack a grant that was lost.
    const std::uint8_t type = message.repair_below > 0 ? TARPON_REPAIR : TARPON_CREDIT;
    queue_control({.type = type,
                   .stage = stage,
                   .peer = message.peer,
                   .tag = operation.tag,
                   .operation = operation.number,
                   .slot = message.granted,
                   .signature_hash = operation.signature_hash});
    message.asked = now;
    ++message.asks;
    // Where nothing is asked for, slots that were granted twice and never seen count as lost: the
    // grant must not stall behind them.
    if (message.repair_below == 0 && message.asks > 1) message.written_off = message.granted;
    extend_grant(operation, operation.stages[stage], message);
  }
  return message_due(operation, message);
}

}  // namespace tarpon
