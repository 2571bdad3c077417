// Late ranks: what a late rank does, and what a rank does when a peer has closed an operation.
// lateness_check.h: how a rank finds out that it is late.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {
bool Endpoint::in_doubt(OperationHandle handle) const {
  const Operation* operation = state_->find(handle);
  return operation != nullptr && operation->inquiry.is_on();
}

/// Whether `peer`, which takes part in the operation, has ended it, and not given it up before it
/// could begin: it has no result then.
bool Endpoint::State::has_ended(const Channel& channel, Rank peer, std::uint32_t number) const {
  return before(number, channel.closed_below_of[peer]) &&
         !standings.excludes(peer, channel.tag, number) &&
         !channel.early_aborts_of[peer].contains(number) &&
         !early.has_expired(channel.tag, number, peer);
}

/// `peer` has closed this operation. Its CLOSED will say whether it had data of this rank by then.
void Endpoint::State::peer_closed(Operation& operation, Rank peer, Time now) {
  const SendMessage* message = operation.last_stage().send_to(peer);
  const bool owed = message != nullptr && message->next < message->slots;
  if (owed && !operation.peers[peer].never_began) lateness.ask(operation, peer, now);
  peer_passed(operation, peer, false, now);
}

/// `peer` has closed the operation without data of this rank's last stage. This rank sends that
/// stage to no other peer, or the results would differ.
void Endpoint::State::become_late(Operation& operation, Rank peer, Time now) {
  Stage& last = operation.last_stage();
  if (!operation.bounded || operation.late) return;
  operation.late = true;
  lateness.stop(operation, now);
  if (operation.started == kNever) start_clock(operation, now, {});
  if (!stranded(operation)) begin_fetch(operation);
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    for (SendMessage& message : stage.sends) message.done = true;
    stage.unacknowledged = 0;
    const bool fetched = &stage == &last && !stranded(operation);
    if (!fetched && !stage.closed)
      receiver.close_stage(operation, stage, Closing::given_up, latest);
  }
  ask_for_ends(operation, now);
  Event event;
  event.kind = Event::Kind::late;
  event.peer = peer;
  tell(operation, event);
}

/// Asks every peer for its CLOSED, until it comes: any one of them may say that the shard of a rank
/// which is behind this one is void. Without that news this rank would wait for that rank.
void Endpoint::State::ask_for_ends(Operation& operation, Time now) {
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank || standings.excludes(peer, operation.tag, operation.number)) continue;
    PeerView& view = operation.peers[peer];
    view.readies = std::max(1u, view.readies);
    view.ready_at = now;
  }
  timer = std::min(timer, now);
}

/// Lets the deadline end the last stage, not the bound. All its missing slots are asked for now.
void Endpoint::State::begin_fetch(Operation& operation) {
  Stage& last = operation.last_stage();
  last.end = kNever;
  last.early = Duration::zero();
  for (ReceiveMessage& message : last.receives) message.repair_below = message.slots;
}

/// Answers `peer`, which asks for data that this rank, being late, owes to no peer any more.
void Endpoint::State::tell_void(const Operation& operation, Rank peer) {
  control.push(ControlDue{.type = TARPON_CLOSED,
                          .peer = peer,
                          .tag = operation.tag,
                          .operation = operation.number,
                          .ranks = 1ull << options.rank});
}

/// Stops waiting for `peer`: it sends nothing more in this operation.
void Endpoint::State::nothing_from(Operation& operation, Rank peer) {
  operation.peers[peer].ready_at = kNever;
  lateness.answered(operation, peer, latest);
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr || stage.closed || message->final || message->delivered()) continue;
    receiver.give_up(operation, stage, *message, latest);
  }
}

/// Stops waiting for ranks whose data the sender of CLOSED never received, and for that sender
/// itself if it has no result. Where ranks forward, CLOSED stands for the sender's confirmations.
void Endpoint::State::take_closed(Operation& operation, const ControlPacket& packet, Time now) {
  operation.peers[packet.sender()].ready_at = kNever;
  lateness.answered(operation, packet.sender(), latest);
  for (std::uint8_t i = 0; i < operation.stage_count && operation.forwards; ++i) {
    apply_grant(operation, i, packet.sender(), TARPON_CREDIT_COMPLETE);
  }
  if (!operation.bounded) return;
  const std::uint64_t absent = packet.absent();
  if ((absent >> options.rank & 1) != 0) become_late(operation, packet.sender(), now);
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if ((absent >> peer & 1) == 0) continue;
    for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
      Stage& stage = operation.stages[i];
      ReceiveMessage* message = stage.receive_from(peer);
      if (message == nullptr || stage.closed || message->final || message->delivered()) continue;
      const bool here = message->presence.count() > message->given_up;
      if (here && peer != packet.sender()) continue;
      receiver.give_up(operation, stage, *message, latest);
    }
  }
}

}  // namespace tarpon
