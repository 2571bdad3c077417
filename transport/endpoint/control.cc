// Packets in: everything but DATA.
#include <algorithm>
#include <cstring>
#include <span>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

/// Copies the ranges of a REPAIR, cut at `limit`; ones out of order are left out, so that no slot
/// is asked for twice. Returns their number.
std::uint32_t read_ranges(std::span<const std::byte> payload, std::uint32_t limit,
                          std::span<tarpon_range, kMaxRepairRanges> out) {
  std::uint32_t count = 0;
  std::uint32_t asked = 0;
  const std::size_t ranges = std::min(payload.size() / sizeof(tarpon_range), kMaxRepairRanges);
  for (std::size_t i = 0; i < ranges; ++i) {
    tarpon_range range;
    std::memcpy(&range, payload.data() + i * sizeof range, sizeof range);
    if (range.first >= limit || range.first < asked) continue;
    range.count = std::min(range.count, limit - range.first);
    asked = range.first + range.count;
    if (range.count > 0) out[count++] = range;
  }
  return count;
}

bool well_formed(const tarpon_header& header, std::size_t payload_bytes) {
  if (header.type == TARPON_READY) return payload_bytes == sizeof(tarpon_ready);
  if (header.type == TARPON_REPAIR) return payload_bytes % sizeof(tarpon_range) == 0;
  return true;
}

tarpon_ready read_ready(std::span<const std::byte> payload) {
  tarpon_ready ready;
  std::memcpy(&ready, payload.data(), sizeof ready);
  return ready;
}

/// The header's `closed_below` in full: the number nearest to its operation.
std::uint32_t closed_below(const tarpon_header& header) {
  const auto delta =
      static_cast<std::int16_t>(header.closed_below - static_cast<std::uint16_t>(header.operation));
  return header.operation + static_cast<std::uint32_t>(std::int32_t{delta});
}

Signature signature_of(const tarpon_ready& ready) {
  Signature signature;
  std::copy(std::begin(ready.signature), std::end(ready.signature), signature.begin());
  return signature;
}

}  // namespace

void Endpoint::State::take_control(Time now, const tarpon_header& header,
                                   std::span<const std::byte> payload) {
  if (!well_formed(header, payload.size())) {
    ++counters[DropReason::fields];
    return;
  }
  ++counters.control_in;
  if (header.type == TARPON_PROBE || header.type == TARPON_PROBE_REPLY) return;
  Channel* channel = find_channel(header.tag);
  if (channel == nullptr) return take_early_control(header, payload);
  note_closed_below(*channel, header, now);
  if (header.type == TARPON_HEARTBEAT) return;
  Operation* operation = find_open(*channel, header.operation);
  if (operation == nullptr) {
    return before(header.operation, channel->next_number)
               ? take_past_control(*channel, header, payload)
               : take_early_control(header, payload);
  }
  heard_from(*operation, header.sender, now);
  if (header.type == TARPON_CLOSED) return;  // its closed_below has said the rest
  if (header.type == TARPON_ABORT) {
    return take_abort(*operation, header.sender, header.slot, now);
  }
  if (header.type == TARPON_READY) return take_ready(*operation, header, payload, now);
  if (header.signature != operation->signature_hash) {
    refuse_control(DropReason::mismatch);
    return tell_mismatch(*operation, header.sender, nullptr, now);
  }
  if (header.stage >= operation->stage_count) return refuse_control(DropReason::unexpected);
  const SendMessage* message = operation->stages[header.stage].send_to(header.sender);
  if (message != nullptr && header.slot == TARPON_CREDIT_COMPLETE &&
      message->next < message->slots) {
    return refuse_control(DropReason::unexpected);  // it cannot have what was never sent
  }
  apply_grant(*operation, header.stage, header.sender, header.slot);
  if (header.type == TARPON_REPAIR) apply_repair(*operation, header, payload);
}

/// For what was counted as applied on its way in.
void Endpoint::State::refuse_control(DropReason reason) {
  --counters.control_in;
  ++counters[reason];
}

void Endpoint::State::take_ready(Operation& operation, const tarpon_header& header,
                                 std::span<const std::byte> payload, Time now) {
  const tarpon_ready ready = read_ready(payload);
  const Signature theirs = signature_of(ready);
  if (theirs != operation.signature) {
    if (header.slot > 0) operation.peers[header.sender].mismatch_answered = false;
    return tell_mismatch(operation, header.sender, &theirs, now);
  }
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    apply_grant(operation, i, header.sender, ready.grant[i]);
  }
  if (header.slot == 0) return;
  // A repeated READY says that the peer has heard nothing of us: answer.
  queue_control({.type = TARPON_CREDIT,
                 .stage = 0,
                 .peer = header.sender,
                 .tag = header.tag,
                 .operation = header.operation,
                 .slot = options.initial_credit,
                 .signature_hash = operation.signature_hash});
}

void Endpoint::State::take_abort(Operation& operation, Rank peer, std::uint32_t reason, Time now) {
  // A late rank costs a bounded operation that rank's part and no more.
  if (operation.bounded && reason == TARPON_ABORT_EXPIRED) return peer_passed(operation, peer, now);
  Event event;
  event.kind = Event::Kind::aborted;
  event.peer = peer;
  event.reason = reason;
  tell(operation, event);
}

/// Of an operation that is not open here yet. All but READY and ABORT comes again once it is.
void Endpoint::State::take_early_control(const tarpon_header& header,
                                         std::span<const std::byte> payload) {
  const Channel* channel = find_channel(header.tag);
  const std::uint32_t lowest = channel == nullptr ? 0 : channel->lowest_open();
  if (header.operation - lowest >= options.window) {
    return refuse_control(DropReason::outside_window);
  }
  if (header.type != TARPON_READY && header.type != TARPON_ABORT) return;
  EarlyOperation* one = early_for(header.tag, header.operation);
  if (one == nullptr) return refuse_control(DropReason::early_overrun);
  EarlyOperation::FromPeer& from = one->peers[header.sender];
  if (header.type == TARPON_ABORT) {
    from.aborted = true;
    from.abort_reason = header.slot;
    return;
  }
  const tarpon_ready ready = read_ready(payload);
  from.announced = true;
  from.signature = signature_of(ready);
  std::copy(std::begin(ready.grant), std::end(ready.grant), from.grants.begin());
}

/// Of an operation that is over here.
void Endpoint::State::take_past_control(Channel& channel, const tarpon_header& header,
                                        std::span<const std::byte> payload) {
  if (header.type == TARPON_READY) {
    const Channel::Past* past = channel.find_past(header.operation);
    answer_past(channel, header,
                past != nullptr && past->signature != signature_of(read_ready(payload)));
  } else if (header.type == TARPON_REPAIR) {
    apply_repair_of_closed(channel, header, payload);
  }
}

/// Tells a peer that is still at an operation that is over here what has become of it.
/// `other_signature`: it runs something else under this number.
void Endpoint::State::answer_past(const Channel& channel, const tarpon_header& header,
                                  bool other_signature) {
  // Who has closed it too has nothing to learn; two that answered each other would never stop.
  if (before(header.operation, closed_below(header))) return;
  const Channel::Past* past = channel.find_past(header.operation);
  ControlDue due{.type = TARPON_CLOSED,
                 .peer = header.sender,
                 .tag = header.tag,
                 .operation = header.operation};
  const bool aborted = past != nullptr && past->aborted;
  if (other_signature && (!aborted || past->reason == TARPON_ABORT_MISMATCH)) {
    due.type = TARPON_READY;
  } else if (aborted) {
    due.type = TARPON_ABORT;
    due.slot = past->reason;
  }
  queue_control(due);
}

void Endpoint::State::tell_mismatch(Operation& operation, Rank peer, const Signature* theirs,
                                    Time now) {
  PeerView& view = operation.peers[peer];
  view.disagrees = true;
  if (!view.mismatch_answered) {
    // The peer needs our fields as we need its: READY carries them.
    view.mismatch_answered = true;
    queue_control(
        {.type = TARPON_READY, .peer = peer, .tag = operation.tag, .operation = operation.number});
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

void Endpoint::State::note_closed_below(Channel& channel, const tarpon_header& header, Time now) {
  const std::uint32_t below = closed_below(header);
  std::uint32_t& known = channel.closed_below_of[header.sender];
  if (!before(known, below)) return;
  known = below;
  for (Operation* operation : channel.open) {
    if (before(operation->number, below)) peer_passed(*operation, header.sender, now);
  }
  if (!channel.kept.empty()) release_kept(channel);
}

/// `peer` has closed this operation: it wants nothing more of it, and sends only what it is asked
/// for.
void Endpoint::State::peer_passed(Operation& operation, Rank peer, Time now) {
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    apply_grant(operation, i, peer, TARPON_CREDIT_COMPLETE);
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr || stage.closed || message->final || message->delivered()) continue;
    if (message->repair_below > 0) {
      message->presume_lost(message->slots, now - operation.gap_delay);
      timer = now;
      continue;
    }
    message->final = true;
    message_ended(operation, stage);
  }
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
}

void Endpoint::State::apply_repair_of_closed(Channel& channel, const tarpon_header& header,
                                             std::span<const std::byte> payload) {
  const Channel::Kept* kept = find_kept(channel, header.operation);
  if (kept == nullptr || kept->data->stage != header.stage ||
      kept->signature_hash != header.signature) {
    refuse_control(DropReason::unexpected);
    const Channel::Past* past = channel.find_past(header.operation);
    if (past != nullptr && past->aborted) answer_past(channel, header, false);
    return;
  }
  RetainedDue due;
  due.peer = header.sender;
  due.tag = header.tag;
  due.number = header.operation;
  due.count =
      read_ranges(payload, static_cast<std::uint32_t>(kept->data->contributors.size()), due.ranges);
  // One request a peer and operation: the newest one says what is still missing.
  std::erase_if(retained_due, [&](const RetainedDue& old) {
    return old.peer == due.peer && old.tag == due.tag && old.number == due.number;
  });
  if (due.count > 0) retained_due.push_back(due);
}

}  // namespace tarpon
