// Late ranks. Peers close a bounded operation without the last stage of a late rank. The stage is
// void there, so it has to be void at the late rank too.
//
// A late rank may hold everything that it needs to end the operation by itself: the packets of its
// peers have waited for it. So it asks its peers whether they are still at the operation. It
// neither sends its last stage nor ends before they have answered. Three things make it ask: a peer
// repeated its READY for long, and this rank has sent nothing of its last stage; a peer has closed
// the operation, and a part of the stage is unsent; its own clock. A peer that has closed the
// operation answers by CLOSED. Any other packet of the operation that left the peer after the
// question is an answer too: its echo of our clock tells. Peers may close the operation while the
// answer is on its way. So the rank asks once more when its last stage has been sent.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

/// READYs that a peer repeats in vain: the last of them leaves after half of the shortest bound, or
/// after eight of its quiet delays where those are shorter.
constexpr std::uint32_t kLongWait = 3;

Stage& last_stage(Operation& operation) {
  return operation.stages[operation.stage_count - 1];
}

bool all_sent(Operation& operation) {
  const std::vector<SendMessage>& sends = last_stage(operation).sends;
  return std::all_of(sends.begin(), sends.end(),
                     [](const auto& one) { return one.done || one.next == one.slots; });
}

/// When the wait for the answers to a question of `now` ends.
Time patience(Operation& operation, Time now) {
  const bool known = last_stage(operation).end != kNever;  // else the caller has not said yet
  return known ? std::min(after(now, operation.grace), operation.deadline) : operation.deadline;
}

}  // namespace

bool Endpoint::in_doubt(OperationHandle handle) const {
  const Operation* operation = state_->find(handle);
  return operation != nullptr && operation->doubt.is_on();
}

/// Whether a peer can answer that could not answer the question before: it has begun since. True
/// where there was no such peer.
bool Endpoint::State::has_new_answerer(const Operation& operation) {
  const std::uint64_t not_begun = operation.doubt.not_begun;
  if (not_begun == 0) return true;
  for (Rank peer = 0; peer < operation.peers.size(); ++peer) {
    if ((not_begun >> peer & 1) != 0 && operation.peers[peer].heard) return true;
  }
  return false;
}

/// Of the last stage more may go out now.
void Endpoint::State::look_for_doubt(Operation& operation, Time now) {
  Doubt& doubt = operation.doubt;
  if (doubt.unanswered > 0) return;
  if (doubt.to_confirm && all_sent(operation)) {
    // The question must not overtake that stage: a peer that has neither would call the operation
    // open.
    doubt.gone_out = std::min(doubt.gone_out, now);
    if (now < doubt.gone_out + operation.gap_delay) return;
    doubt.to_confirm = false;
    ask_all(operation, now);
  } else if (now >= doubt.arises && nothing_sent(operation) && has_new_answerer(operation)) {
    begin_doubt(operation, now);
  }
}

/// A peer has repeated its READY `times` times. That makes this rank ask once: a peer that goes on
/// repeating it does not hear the question either.
void Endpoint::State::note_waiting(Operation& operation, std::uint32_t times, Time now) {
  Doubt& doubt = operation.doubt;
  if (times < kLongWait || doubt.by_waiting || doubt.unanswered > 0) return;
  if (!nothing_sent(operation)) return;
  doubt.by_waiting = true;
  begin_doubt(operation, now);
}

void Endpoint::State::begin_doubt(Operation& operation, Time now) {
  if (!operation.fetches_when_late || operation.late) return;
  operation.doubt.to_confirm = true;
  operation.doubt.gone_out = kNever;
  ask_all(operation, now);
}

void Endpoint::State::ask_all(Operation& operation, Time now) {
  for (const SendMessage& message : last_stage(operation).sends) {
    if (message.slots > 0 && !message.done) ask(operation, message.peer, now);
  }
}

void Endpoint::State::ask(Operation& operation, Rank peer, Time now) {
  if (!operation.fetches_when_late || operation.late || standings.is_dead(peer)) return;
  PeerView& view = operation.peers[peer];
  view.readies = std::max(1u, view.readies);
  view.ready_at = now;
  timer = std::min(timer, now);
  if (view.asked) return;
  view.asked = true;
  if (operation.doubt.unanswered++ > 0) return;
  operation.doubt.since = now;
  operation.doubt.until = patience(operation, now);
}

/// `peer` has said whether it had anything of ours, or is asked no more.
void Endpoint::State::answered(Operation& operation, Rank peer) {
  PeerView& view = operation.peers[peer];
  if (!view.asked) return;
  view.asked = false;
  if (view.heard) view.ready_at = kNever;  // else what it owes is not asked for before it is
  if (--operation.doubt.unanswered > 0) return;
  operation.doubt.until = patience(operation, latest);  // for what goes out now
  // Beyond the end no new doubt arises: the peers would ask one another without end.
  const Time stale = after(operation.doubt.since, operation.grace / 2);
  const Time again = std::max(stale, operation.doubt.near_end);
  operation.doubt.arises = again < last_stage(operation).end ? again : kNever;
  timer = std::min(timer, latest);
}

/// Of an operation that is open at its sender too, unless that has passed it.
void Endpoint::State::note_answer(const Channel& channel, Operation& operation,
                                  const tarpon_header& header) {
  if (operation.doubt.unanswered == 0 || header.echo_us == 0) return;
  if (before(operation.number, channel.closed_below_of[header.sender])) return;  // CLOSED says it
  const std::uint32_t since = microseconds(operation.doubt.since);
  if (static_cast<std::int32_t>(header.echo_us - since) < 0) return;  // it was on its way
  answered(operation, header.sender);
}

/// Until when whoever has not answered is waited for.
Time Endpoint::State::time_doubt(Operation& operation, Time now) {
  Doubt& doubt = operation.doubt;
  if (doubt.to_confirm) look_for_doubt(operation, now);
  if (!doubt.is_on()) return kNever;
  if (now >= doubt.until) {
    end_doubt(operation);
    return kNever;
  }
  const bool waits = doubt.to_confirm && doubt.unanswered == 0 && doubt.gone_out != kNever;
  return waits ? std::min(doubt.until, doubt.gone_out + operation.gap_delay) : doubt.until;
}

/// When the operation ends is known.
void Endpoint::State::bound_doubt(Operation& operation, Time arises, Time now) {
  Doubt& doubt = operation.doubt;
  doubt.arises = doubt.near_end = arises;
  if (doubt.is_on()) doubt.until = patience(operation, now);
}

/// Stops the questions. A peer that had not begun could not answer. Where it begins later, one more
/// question comes at the end of the stage; until then the stage may go out.
void Endpoint::State::end_doubt(Operation& operation) {
  Doubt& doubt = operation.doubt;
  const bool was_early = doubt.since < doubt.near_end && doubt.near_end != kNever;
  doubt.not_begun = 0;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    const PeerView& view = operation.peers[peer];
    if (was_early && view.asked && !view.heard) doubt.not_begun |= 1ull << peer;
    answered(operation, peer);
  }
  doubt.to_confirm = false;
  doubt.arises = doubt.not_begun != 0 ? last_stage(operation).end : kNever;
}

/// Whether the last stage, whose time is up, stays open until the peers have answered. This rank
/// may be late, and a late rank fetches the rest of that stage.
bool Endpoint::State::awaits_answers(Operation& operation, Time now) {
  if (now >= operation.deadline) return false;
  look_for_doubt(operation, now);
  return operation.doubt.is_on();
}

/// `peer` has closed this operation. Whether it had anything of ours by then, its CLOSED says.
void Endpoint::State::peer_closed(Operation& operation, Rank peer, Time now) {
  const SendMessage* message = last_stage(operation).send_to(peer);
  const bool owed = message != nullptr && message->next < message->slots;
  if (owed && !operation.peers[peer].never_began) ask(operation, peer, now);
  peer_passed(operation, peer, false, now);
}

/// `peer` has closed without anything of this rank's last stage. It goes to nobody any more, or the
/// results would differ.
void Endpoint::State::become_late(Operation& operation, Rank peer, Time now) {
  Stage& last = last_stage(operation);
  if (!operation.bounded || operation.late) return;
  operation.late = true;
  end_doubt(operation);
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
  Event event;
  event.kind = Event::Kind::late;
  event.peer = peer;
  tell(operation, event);
}

/// The deadline ends it, not the bound. What is not repaired within that is asked for now.
void Endpoint::State::begin_fetch(Operation& operation) {
  Stage& last = last_stage(operation);
  last.end = kNever;
  last.early = Duration::zero();
  for (ReceiveMessage& message : last.receives) message.repair_below = message.slots;
}

/// `peer` asks for what this rank, which is late, owes to nobody any more.
void Endpoint::State::tell_void(const Operation& operation, Rank peer) {
  queue_control({.type = TARPON_CLOSED,
                 .peer = peer,
                 .tag = operation.tag,
                 .operation = operation.number,
                 .contributors = 1ull << options.rank});
}

/// Nothing more comes of `peer` in this operation.
void Endpoint::State::nothing_from(Operation& operation, Rank peer) {
  operation.peers[peer].ready_at = kNever;
  answered(operation, peer);
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr || stage.closed || message->final || message->delivered()) continue;
    receiver.give_up(operation, stage, *message, latest);
  }
}

/// Of whom a peer had nothing by the end of its operation, nobody need wait for; nor for a peer
/// that has nothing of its own.
void Endpoint::State::take_closed(Operation& operation, const tarpon_header& header, Time now) {
  operation.peers[header.sender].ready_at = kNever;
  answered(operation, header.sender);
  if (!operation.bounded) return;
  const std::uint64_t absent = header.contributors;
  if ((absent >> options.rank & 1) != 0) become_late(operation, header.sender, now);
  for (Rank peer = 0; peer < options.world_size && peer < 64; ++peer) {
    if ((absent >> peer & 1) == 0) continue;
    for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
      Stage& stage = operation.stages[i];
      ReceiveMessage* message = stage.receive_from(peer);
      if (message == nullptr || stage.closed || message->final || message->delivered()) continue;
      const bool here = message->presence.count() > message->given_up;
      if (here && peer != header.sender) continue;
      receiver.give_up(operation, stage, *message, latest);
    }
  }
}

}  // namespace tarpon
