#include "transport/operation/announcer.h"

#include <algorithm>

#include "transport/tags/passed_news.h"

namespace tarpon {

void Announcer::begin(Operation& operation, bool advertises, Time now) {
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if (peer == parts_.options.rank) continue;
    if ((operation.near >> peer & 1) != 0) {
      operation.peers[peer].ready().announce(now + operation.quiet_delay);
      continue;
    }
    std::uint32_t most = 0;
    bool talks = false;
    for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
      const ReceiveMessage* receive = operation.stages[i].receive_from(peer);
      if (receive != nullptr) most = std::max(most, receive->slots());
      talks |= receive != nullptr || operation.stages[i].send_to(peer) != nullptr;
    }
    if (!talks) continue;
    const SendMessage* first = operation.stages[0].send_to(peer);
    const bool implicit = first != nullptr && first->slots() > 0 && first->is_ready() &&
                          most <= parts_.options.initial_credit && !advertises &&
                          !operation.tells_terms;
    operation.peers[peer].ready().announce(implicit ? now + operation.quiet_delay : now);
  }
}

void Announcer::heard(const Operation& operation, Rank peer) {
  if (operation.peers[peer].ready().repeats() > 0 || (operation.near >> peer & 1) != 0) return;
  for (std::uint32_t i = 0; i < operation.stage_count && !operation.tells_terms; ++i) {
    const SendMessage* message = operation.stages[i].send_to(peer);
    if (message != nullptr && message->slots() > 0) return;
  }
  parts_.control.push(ControlDue{
      .type = TARPON_READY, .peer = peer, .tag = operation.tag, .operation = operation.number});
}

void Announcer::ask_for_ends(Operation& operation, Time now) {
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if (peer == parts_.options.rank) continue;
    if (parts_.participants.excludes(peer, operation.tag, operation.number)) continue;
    operation.peers[peer].ready().ask(now);
  }
  parts_.alarm.no_later_than(now);
}

Time Announcer::run(Operation& operation, const TagState& tag_state, Time now) {
  ask_who_has_passed(operation, tag_state, now);
  Time next = ask_for_confirmations(operation, now);
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    const ReadyTimer& ready = operation.peers[peer].ready();
    if (ready.is_due(now)) send(operation, peer, now);
    next = std::min(next, ready.at());
  }
  return next;
}

/// Asks for confirmations when this rank has all that it receives, but not all of them. Receivers
/// that have a message answer repeated READYs by a confirmation, those that have closed the
/// operation by CLOSED.
Time Announcer::ask_for_confirmations(Operation& operation, Time now) {
  if (!operation.awaits_confirmations) return kNever;
  const Time at = now + operation.quiet_delay;
  bool unconfirmed = false;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    const Stage& stage = operation.stages[i];
    if (!stage.closed) return kNever;
    for (const SendMessage& message : stage.sends) {
      if (!stage.acknowledge || message.is_done()) continue;
      unconfirmed = true;
      if (message.has_all_left() || operation.bounded)
        operation.peers[message.peer()].ready().ask_if_none_is_due(at);
    }
  }
  return unconfirmed ? at : kNever;
}

/// A caller that keeps a finished operation open may be waiting for room to retain it. Peers that
/// are silent on this tag are asked how far they are: a repeated READY is answered.
void Announcer::ask_who_has_passed(Operation& operation, const TagState& tag_state, Time now) {
  if (tag_state.kept.empty()) return;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    if (!operation.stages[i].closed) return;
  }
  const std::uint32_t oldest = tag_state.kept.front().number;
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if (peer == parts_.options.rank) continue;
    if (before(oldest, passed_by(tag_state, peer, parts_.participants))) continue;
    operation.peers[peer].ready().ask_if_none_is_due(now + operation.quiet_delay);
  }
}

/// Queues a READY. When there is no room for it, it goes out after a while.
void Announcer::send(Operation& operation, Rank peer, Time now) {
  ReadyTimer& ready = operation.peers[peer].ready();
  if (!parts_.control.push(ControlDue{.type = TARPON_READY,
                                      .peer = peer,
                                      .tag = operation.tag,
                                      .operation = operation.number,
                                      .repeats = ready.repeats()})) {
    return ready.announce(now + operation.gap_delay);
  }
  // A near peer does not need it to begin.
  const bool near = (operation.near >> peer & 1) != 0;
  ready.sent(now, operation.quiet_delay,
             near ? parts_.options.repair_delay_max : parts_.receiver.longest_delay(operation));
}

}  // namespace tarpon
