// Packets in: everything but DATA.
#include <algorithm>
#include <bit>
#include <span>

#include "transport/endpoint/state.h"
#include "transport/wire/control_packet.h"

namespace tarpon {
void Endpoint::State::take_control(Time now, const ControlPacket& packet) {
  if (!packet.is_well_formed(max_entries())) {
    ++counters[DropReason::fields];
    return;
  }
  const tarpon_header& header = packet.header();
  ++counters.control_in;
  journal.note_in(packet, now);
  // Late probes of the search for the size of slots: they carry no clock.
  if (header.type == TARPON_PROBE || header.type == TARPON_PROBE_REPLY) return;
  note_clock(header, now);
  if (header.type == TARPON_HEARTBEAT) return take_heartbeat(packet, now);
  if (header.type == TARPON_AGREEMENT) return take_agreement(packet);
  Channel* channel = channel_of(header);
  if (channel == nullptr) {
    if (!tags.remembers(header.tag)) return take_early_control(packet);
    // Packets of operations that the peer has passed may still be on their way: they prove nothing.
    if (packet.asks() && !clocks.overtaken()) tell_forgotten(header, header.sender);
    return;
  }
  if (header.type == TARPON_ABORT && packet.reason() == TARPON_ABORT_FORGOTTEN &&
      packet.names(options.rank)) {
    return take_told_forgotten(*channel, header, now);
  }
  if (channel->lost) {
    if (packet.asks()) tell_forgotten(header, options.rank);
    return;
  }
  Operation* operation = channel->find_open(header.operation);
  const bool aborts = operation != nullptr && header.type == TARPON_ABORT;
  if (!aborts) note_closed_below(*channel, header, now);
  if (operation == nullptr) {
    return before(header.operation, channel->next_number) ? take_past_control(*channel, packet)
                                                          : take_early_control(packet);
  }
  const bool tells_an_end = header.type == TARPON_CLOSED || header.type == TARPON_ABORT;
  const bool other = other_epoch(*operation, header);
  if (other && !tells_an_end) return refuse_control(DropReason::epoch);
  const bool ready = header.type == TARPON_READY;
  heard_from(*operation, header.sender,
             ready ? std::chrono::microseconds(packet.ready().age_us) : Duration{});
  another_has_begun(*operation);
  if (!aborts) lateness.note_answer(*channel, *operation, header, now);
  if (header.type == TARPON_CLOSED) {
    take_marks(*operation, marks_in(header));
    // The absent ranks in a CLOSED of another epoch belong to a different operation.
    return other ? nothing_from(*operation, header.sender) : take_closed(*operation, packet, now);
  }
  if (header.type == TARPON_ABORT) {
    take_abort(*operation, header.sender, packet.reason(), packet.blamed(everybody()), now);
    // Only now: it closes the stages that wait for no other peer, which looks like a result.
    return note_closed_below(*channel, header, now);
  }
  if (ready) return take_ready(*operation, packet, now);
  if (header.signature != operation->signature_hash) {
    refuse_control(DropReason::mismatch);
    return tell_mismatch(*operation, header.sender, nullptr, now);
  }
  take_marks(*operation, marks_in(header));
  if (header.stage >= operation->stage_count) return refuse_control(DropReason::unexpected);
  Stage& stage = operation->stages[header.stage];
  const SendMessage* message = stage.send_to(header.sender);
  if (message != nullptr && packet.confirms() &&
      std::max(message->next, stage.multicast.next) < message->slots) {
    return refuse_control(DropReason::unexpected);  // it cannot have what was never sent
  }
  apply_grant(*operation, header.stage, header.sender, packet.grant());
  if (header.type != TARPON_REPAIR) return;
  if (operation->late) return tell_void(*operation, header.sender);
  apply_repair(*operation, packet);
}

/// Keeps the message for the caller, who takes all after each batch.
void Endpoint::State::take_agreement(const ControlPacket& packet) {
  const auto kept =
      std::count_if(agreements.begin(), agreements.end(),
                    [&](const AgreementPacket& one) { return one.peer == packet.sender(); });
  if (static_cast<std::size_t>(kept) == ControlQueue::kMaxAgreements) {
    return refuse_control(DropReason::early_overrun);
  }
  agreements.push_back({packet.sender(), packet.agreement()});
}

/// Counts a packet as dropped that was counted as applied when it came.
void Endpoint::State::refuse_control(DropReason reason) {
  --counters.control_in;
  ++counters[reason];
}

void Endpoint::State::take_ready(Operation& operation, const ControlPacket& packet, Time now) {
  const tarpon_header& header = packet.header();
  const tarpon_ready ready = packet.ready();
  const Signature theirs = signature_of(ready);
  const bool asks = packet.repeats() > 0;
  if (theirs != operation.signature) {
    if (asks) operation.peers[header.sender].mismatch_answered = false;
    return tell_mismatch(operation, header.sender, &theirs, now);
  }
  take_marks(operation, marks_in(header));
  if (!packet.is_mismatch_answer()) operation.peers[header.sender].terms = terms_of(ready);
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    // By READY a peer asks for what it needs; it confirms what it has by CREDIT.
    if (ready.grant[i] != TARPON_CREDIT_COMPLETE)
      apply_grant(operation, i, header.sender, ready.grant[i]);
  }
  if (!asks) return;
  if (operation.forwards) receiver.confirm_again(operation, header.sender);
  lateness.note_waiting(operation, packet.repeats(), now);
  // A repeated READY says that the peer has heard nothing of us. One CREDIT answers all READYs that
  // have come before it leaves. A rank that stood still finds many of them.
  PeerView& view = operation.peers[header.sender];
  if (view.answer_queued) return;
  view.answer_queued = control.push(ControlDue{.type = TARPON_CREDIT,
                                               .stage = 0,
                                               .peer = header.sender,
                                               .tag = header.tag,
                                               .operation = header.operation,
                                               .grant = operation.unasked,
                                               .signature_hash = operation.signature_hash});
}

void Endpoint::State::take_abort(Operation& operation, Rank from, std::uint32_t reason,
                                 std::uint64_t ranks, Time now) {
  // A late rank costs a bounded operation only the data of that rank.
  if (operation.bounded && reason == TARPON_ABORT_EXPIRED) {
    const auto late = static_cast<Rank>(std::countr_zero(ranks));
    operation.peers[late].never_began = true;
    lateness.answered(operation, late, now);
    return peer_passed(operation, late, true, now);
  }
  Event event;
  event.kind = Event::Kind::aborted;
  event.peer = from;
  event.reason = reason;
  event.ranks = ranks;
  event.begun_late = operation.begun_late;
  tell(operation, event);
}

void Endpoint::State::tell_mismatch(Operation& operation, Rank peer, const Signature* theirs,
                                    Time now) {
  PeerView& view = operation.peers[peer];
  view.disagrees = true;
  if (!view.mismatch_answered) {
    // The peer needs our fields as we need its: READY carries them.
    view.mismatch_answered = true;
    control.push(ControlDue{
        .type = TARPON_READY, .peer = peer, .tag = operation.tag, .operation = operation.number});
  }
  if (view.mismatch_told) return;
  if (theirs == nullptr) {  // a repeated READY is answered: it asks for the peer's fields
    if (view.ready_at != kNever) return;
    view.readies = std::max(1u, view.readies);
    view.ready_at = now + operation.quiet_delay;
    timer = std::min(timer, view.ready_at);
    return;
  }
  view.mismatch_told = true;
  view.ready_at = kNever;
  Event event;
  event.kind = Event::Kind::mismatch;
  event.peer = peer;
  event.signature = *theirs;
  tell(operation, event);
}

void Endpoint::State::apply_grant(Operation& operation, std::uint8_t stage_number, Rank peer,
                                  std::uint32_t grant) {
  Stage& stage = operation.stages[stage_number];
  SendMessage* message = stage.send_to(peer);
  if (message == nullptr) return;
  if (grant != TARPON_CREDIT_COMPLETE) {
    message->grant = std::max(message->grant, grant);
    return;
  }
  if (message->done) return;
  message->done = true;
  if (!stage.acknowledge || --stage.unacknowledged != 0) return;
  Event event;
  event.kind = Event::Kind::acknowledged;
  event.stage = stage_number;
  tell(operation, event);
}

void Endpoint::State::apply_repair(Operation& operation, const ControlPacket& packet) {
  SendMessage* message = operation.stages[packet.header().stage].send_to(packet.sender());
  if (message == nullptr) return;
  // Slots that were never sent need no repair.
  message->repair_count = packet.ranges(message->next, message->repairs);
  ++message->requests;
}

}  // namespace tarpon
