// Time: deadlines, bounds, announcements that nobody answered, slots that did not come.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

constexpr int kAnswers = 10;  // waits for one, before a repair counts as gone

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

void Endpoint::State::run_timers(Time now) {
  Time next = kNever;
  for (Operation* operation : open_operations) {
    next = std::min(next, time_operation(*operation, now));
  }
  timer = next;
  passed_news.run(now, control);
  check_silence(now);
  timer = std::min(timer, passed_news.next());
  if (options.detects_silence) timer = std::min(timer, liveness.next());
  give_credit(now);
}

Time Endpoint::State::time_operation(Operation& operation, Time now) {
  Time next = time_doubt(operation, now);
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
      next = std::min(next, time_message(operation, static_cast<std::uint8_t>(i), message, now));
    }
  }
  return next;
}

/// Where there is no room for it, it goes out after a while.
void Endpoint::State::send_ready(Operation& operation, Rank peer, Time now) {
  PeerView& view = operation.peers[peer];
  if (!queue_control({.type = TARPON_READY,
                      .peer = peer,
                      .tag = operation.tag,
                      .operation = operation.number,
                      .slot = view.readies})) {
    view.ready_at = now + operation.gap_delay;
    return;
  }
  view.ready_us = microseconds(now);
  view.ready_at = now + backed_off(operation.quiet_delay, view.readies, longest_delay(operation));
  ++view.readies;
}

/// Bounded: ends the stages whose time is up, but not the last one while peers are asked whether
/// this rank is late.
Time Endpoint::State::time_stages(Operation& operation, Time now) {
  Time next = kNever;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    if (stage.closed) continue;
    // What has come by the deadline is a result: the stages close before it is told.
    const Time bound = std::min(stage.end, operation.deadline);
    const bool last = i + 1 == operation.stage_count;
    // A rank that has sent nothing of its last stage may be late. Only the bound ends that stage.
    const bool all_sent = stage.tails_missing == 0 && stage.early > Duration::zero() &&
                          !(last && nothing_sent(operation));
    // What is asked for needs its time: until it is, and for the way there and back.
    const Duration silence =
        stage.repair ? std::max(stage.early, kAnswers * operation.gap_delay) : stage.early;
    const Time early = all_sent ? stage.last_arrival + silence : kNever;
    if (last && now >= std::min(bound, early) && awaits_answers(operation, now)) {
      next = std::min({next, operation.doubt.until, now < bound ? bound : kNever});
    } else if (now >= bound) {
      close_stage(operation, stage, Closing::bound);
    } else if (now >= early) {
      close_stage(operation, stage, Closing::early);
    } else {
      next = std::min({next, bound, early});
    }
  }
  return next;
}

void Endpoint::State::ask_who_has_passed(Operation& operation, Time now) {
  // Whoever keeps a finished operation open may be waiting for room to retain it. Peers that are
  // silent on this tag are asked how far they are: a repeated READY is answered.
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

/// Between two requests: what no bound ends may take as long as it does in exact operations.
Duration Endpoint::State::longest_delay(const Operation& operation) const {
  const bool unbounded = operation.started == kNever || operation.late;
  return unbounded ? options.repair_delay_max : operation.repair_delay_max;
}

Time Endpoint::State::message_due(const Operation& operation, const ReceiveMessage& message) const {
  if (message.waits_for_credit()) return kNever;
  const Duration most = longest_delay(operation);
  if (message.asks > 0 || message.repair_below == 0) {
    const Duration patience = backed_off(operation.quiet_delay, message.asks, most);
    const Time again = std::max(message.asked, message.last_heard) + patience;
    if (message.gap_since == kNever) return again;
    if (message.repair_below == 0) return std::min(again, message.gap_since + operation.gap_delay);
    // What else comes meanwhile does not bring what was asked for: that, or its answer, is lost.
    return message.asked + patience;
  }
  const Time quiet = message.last_heard + operation.quiet_delay;
  return message.gap_since == kNever ? quiet
                                     : std::min(quiet, message.gap_since + operation.gap_delay);
}

/// Nothing is asked for again here: what a gap lacks after a while is lost, and whoever waits for
/// those slots need not any more.
void Endpoint::State::give_up_gap(Operation& operation, Stage& stage, ReceiveMessage& message,
                                  Time now) {
  message.gap_since = kNever;
  std::array<tarpon_range, kMaxRepairRanges> ranges;
  const std::size_t count = message.lost_at_gap(kAllSlots, ranges);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::uint32_t slot = ranges[i].first; slot < ranges[i].first + ranges[i].count; ++slot) {
      message.insert(slot);
      ++message.given_up;
      message.last_given_up |= slot + 1 == message.slots;
      message.sink->lost(message.peer, slot);
    }
  }
  message.presume_overtaken_lost(now);
  if (message.delivered()) delivered_one(operation, stage, message);
}

Time Endpoint::State::time_message(Operation& operation, std::uint8_t stage,
                                   ReceiveMessage& message, Time now) {
  if (message.final || message.presence.complete()) return kNever;
  if (message.repair_below == 0 && message.gap_since != kNever &&
      now >= message.gap_since + operation.gap_delay) {
    give_up_gap(operation, operation.stages[stage], message, now);
    if (message.presence.complete()) return kNever;
  }
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
    message.granted_when_asked = message.granted;
    ++message.asks;
    // Where nothing is asked for, slots that were granted twice and never seen count as lost: the
    // grant must not stall behind them.
    if (message.repair_below == 0 && message.asks > 1) {
      message.written_off = message.granted;
      granter.progressed(operation, message);
    }
  }
  return message_due(operation, message);
}

}  // namespace tarpon
