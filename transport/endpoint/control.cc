// Packets in: everything but DATA.
#include <algorithm>
#include <bit>
#include <span>

#include "transport/endpoint/state.h"
#include "transport/wire/control_fields.h"

namespace tarpon {
namespace {

/// Whether the payload fits the type. `max_entries`: limit for a HEARTBEAT, whose answer has as
/// many entries.
bool well_formed(const tarpon_header& header, std::span<const std::byte> payload,
                 std::size_t max_entries) {
  const std::size_t payload_bytes = payload.size();
  if (header.type == TARPON_READY) return payload_bytes == sizeof(tarpon_ready);
  if (header.type == TARPON_REPAIR) return payload_bytes % sizeof(tarpon_range) == 0;
  if (header.type == TARPON_ABORT) {
    return header.slot < TARPON_ABORT_END && payload_bytes == 0;
  }
  if (header.type == TARPON_HEARTBEAT) {
    return header.slot < TARPON_HEARTBEAT_END && payload_bytes % sizeof(tarpon_passed) == 0 &&
           payload_bytes <= max_entries * sizeof(tarpon_passed);
  }
  if (header.type == TARPON_AGREEMENT) return is_agreement(payload);
  return true;
}

}  // namespace

void Endpoint::State::take_control(Time now, const tarpon_header& header,
                                   std::span<const std::byte> payload) {
  if (!well_formed(header, payload, max_entries())) {
    ++counters[DropReason::fields];
    return;
  }
  ++counters.control_in;
  journal.note_in(header, now);
  // Late probes of the search for the size of slots: they carry no clock.
  if (header.type == TARPON_PROBE || header.type == TARPON_PROBE_REPLY) return;
  note_clock(header, now);
  if (header.type == TARPON_HEARTBEAT) return take_heartbeat(header, payload, now);
  if (header.type == TARPON_AGREEMENT) return take_agreement(header, payload);
  Channel* channel = channel_of(header);
  if (channel == nullptr) {
    if (!tags.remembers(header.tag)) return take_early_control(header, payload);
    // Packets of operations that the peer has passed may still be on their way: they prove nothing.
    const bool asks = header.type == TARPON_READY || header.type == TARPON_REPAIR;
    if (asks && !clocks.overtaken()) tell_forgotten(header, header.sender);
    return;
  }
  if (header.type == TARPON_ABORT && header.slot == TARPON_ABORT_FORGOTTEN &&
      (header.contributors >> options.rank & 1) != 0) {
    return take_told_forgotten(*channel, header, now);
  }
  if (channel->lost) {
    const bool asks = header.type == TARPON_READY || header.type == TARPON_REPAIR;
    if (asks) tell_forgotten(header, options.rank);
    return;
  }
  Operation* operation = channel->find_open(header.operation);
  const bool aborts = operation != nullptr && header.type == TARPON_ABORT;
  if (!aborts) note_closed_below(*channel, header, now);
  if (operation == nullptr) {
    return before(header.operation, channel->next_number)
               ? take_past_control(*channel, header, payload)
               : take_early_control(header, payload);
  }
  const bool tells_an_end = header.type == TARPON_CLOSED || header.type == TARPON_ABORT;
  const bool other = other_epoch(*operation, header);
  if (other && !tells_an_end) return refuse_control(DropReason::epoch);
  const bool ready = header.type == TARPON_READY;
  heard_from(*operation, header.sender,
             ready ? std::chrono::microseconds(read_ready(payload).age_us) : Duration{});
  another_has_begun(*operation);
  if (!aborts) lateness.note_answer(*channel, *operation, header, now);
  if (header.type == TARPON_CLOSED) {
    take_marks(*operation, marks_in(header));
    // The absent ranks in a CLOSED of another epoch belong to a different operation.
    return other ? nothing_from(*operation, header.sender) : take_closed(*operation, header, now);
  }
  if (header.type == TARPON_ABORT) {
    take_abort(*operation, header.sender, header.slot, blamed_by(header), now);
    // Only now: it closes the stages that wait for no other peer, which looks like a result.
    return note_closed_below(*channel, header, now);
  }
  if (ready) return take_ready(*operation, header, payload, now);
  if (header.signature != operation->signature_hash) {
    refuse_control(DropReason::mismatch);
    return tell_mismatch(*operation, header.sender, nullptr, now);
  }
  take_marks(*operation, marks_in(header));
  if (header.stage >= operation->stage_count) return refuse_control(DropReason::unexpected);
  Stage& stage = operation->stages[header.stage];
  const SendMessage* message = stage.send_to(header.sender);
  if (message != nullptr && header.slot == TARPON_CREDIT_COMPLETE &&
      std::max(message->next, stage.multicast.next) < message->slots) {
    return refuse_control(DropReason::unexpected);  // it cannot have what was never sent
  }
  apply_grant(*operation, header.stage, header.sender, header.slot);
  if (header.type != TARPON_REPAIR) return;
  if (operation->late) return tell_void(*operation, header.sender);
  apply_repair(*operation, header, payload);
}

/// Keeps the message for the caller, who takes all after each batch.
void Endpoint::State::take_agreement(const tarpon_header& header,
                                     std::span<const std::byte> payload) {
  const auto kept =
      std::count_if(agreements.begin(), agreements.end(),
                    [&](const AgreementPacket& one) { return one.peer == header.sender; });
  if (static_cast<std::size_t>(kept) == ControlQueue::kMaxAgreements) {
    return refuse_control(DropReason::early_overrun);
  }
  agreements.push_back({header.sender, read_agreement(payload)});
}

/// Counts a packet as dropped that was counted as applied when it came.
void Endpoint::State::refuse_control(DropReason reason) {
  --counters.control_in;
  ++counters[reason];
}

void Endpoint::State::take_ready(Operation& operation, const tarpon_header& header,
                                 std::span<const std::byte> payload, Time now) {
  const tarpon_ready ready = read_ready(payload);
  const Signature theirs = signature_of(ready);
  const bool asks = header.slot > 0 && header.slot != TARPON_READY_ANSWER;
  if (theirs != operation.signature) {
    if (asks) operation.peers[header.sender].mismatch_answered = false;
    return tell_mismatch(operation, header.sender, &theirs, now);
  }
  take_marks(operation, marks_in(header));
  if (header.slot != TARPON_READY_ANSWER) operation.peers[header.sender].terms = terms_of(ready);
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    // By READY a peer asks for what it needs; it confirms what it has by CREDIT.
    if (ready.grant[i] != TARPON_CREDIT_COMPLETE)
      apply_grant(operation, i, header.sender, ready.grant[i]);
  }
  if (!asks) return;
  if (operation.forwards) receiver.confirm_again(operation, header.sender);
  lateness.note_waiting(operation, header.slot, now);
  // A repeated READY says that the peer has heard nothing of us. One CREDIT answers all READYs that
  // have come before it leaves. A rank that stood still finds many of them.
  PeerView& view = operation.peers[header.sender];
  if (view.answer_queued) return;
  view.answer_queued = control.push(ControlDue{.type = TARPON_CREDIT,
                                               .stage = 0,
                                               .peer = header.sender,
                                               .tag = header.tag,
                                               .operation = header.operation,
                                               .slot = operation.unasked,
                                               .signature_hash = operation.signature_hash});
}

/// Returns the ranks that an ABORT blames, or else its sender: an ABORT that is passed on names
/// them.
std::uint64_t Endpoint::State::blamed_by(const tarpon_header& abort) const {
  const std::uint64_t everybody = ~0ull >> (64 - options.world_size);
  const std::uint64_t named = abort.contributors & everybody;
  return named != 0 ? named : 1ull << abort.sender;
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

void Endpoint::State::apply_repair(Operation& operation, const tarpon_header& header,
                                   std::span<const std::byte> payload) {
  SendMessage* message = operation.stages[header.stage].send_to(header.sender);
  if (message == nullptr) return;
  // Slots that were never sent need no repair.
  message->repair_count = read_ranges(payload, message->next, message->repairs);
  ++message->requests;
}

}  // namespace tarpon
