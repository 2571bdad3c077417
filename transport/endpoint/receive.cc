// Packets in: every one is applied, or counted under one reason. Here: the checks, and DATA.
#include <algorithm>
#include <cstring>

#include "transport/endpoint/integrity.h"
#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

DropReason reason_of(tarpon_header_verdict verdict) {
  switch (verdict) {
    case TARPON_HEADER_MAGIC:
      return DropReason::magic;
    case TARPON_HEADER_VERSION:
      return DropReason::version;
    case TARPON_HEADER_JOB:
      return DropReason::foreign_job;
    case TARPON_HEADER_TYPE:
      return DropReason::type;
    case TARPON_HEADER_FIELDS:
    case TARPON_HEADER_OK:
      break;
  }
  return DropReason::fields;
}

}  // namespace

void Endpoint::on_receive(Time now, std::span<const RxPacket> packets) {
  state_->latest = now;
  DataRun run;
  for (std::size_t i = 0; i < packets.size(); ++i) {
    // The headers of a batch lie scattered over the receive buffers: each would be a cache miss.
    if (i + 2 < packets.size()) __builtin_prefetch(packets[i + 2].data);
    state_->receive_packet(now, packets[i], run);
  }
  state_->extend_grants();
}

void Endpoint::State::receive_packet(Time now, const RxPacket& packet, DataRun& run) {
  ++counters.packets_in;
  if (packet.length < TARPON_HEADER_BYTES) {
    ++counters[DropReason::runt];
    return;
  }
  tarpon_header header;
  std::memcpy(&header, packet.data, sizeof header);
  const std::span<const std::byte> whole(packet.data, packet.length);
  const std::span<const std::byte> payload = whole.subspan(TARPON_HEADER_BYTES);

  const tarpon_header_verdict verdict =
      tarpon_check_header(&header, options.job, static_cast<std::uint32_t>(payload.size()));
  if (verdict != TARPON_HEADER_OK) {
    ++counters[reason_of(verdict)];
  } else if (header.sender >= options.world_size || header.sender == options.rank ||
             header.sender != packet.source) {
    ++counters[DropReason::sender];
  } else if (header.communicator != options.communicator) {
    ++counters[DropReason::communicator];
  } else if ((header.flags & TARPON_INTEGRITY_MASK) >> TARPON_INTEGRITY_SHIFT !=
             options.integrity) {
    ++counters[DropReason::integrity];
  } else if (options.integrity == TARPON_INTEGRITY_CRC32C &&
             packet_check(header, payload) != header.check) {
    ++counters[DropReason::integrity];
  } else if (header.epoch != 0 || header.incarnation != 0) {
    ++counters[DropReason::epoch];
  } else if (header.type == TARPON_DATA) {
    take_data(now, header, whole, run);
  } else {
    take_control(now, header, payload);
  }
}

void Endpoint::State::take_data(Time now, const tarpon_header& header,
                                std::span<const std::byte> packet, DataRun& run) {
  if (run.continues(header)) return accept(*run.operation, header, packet, now);
  run.operation = nullptr;
  Channel* channel = find_channel(header.tag);
  if (channel == nullptr) return take_early(header, packet);
  note_closed_below(*channel, header, now);
  if (Operation* operation = find_open(*channel, header.operation)) {
    heard_from(*operation, header.sender, now);
    run = {operation, header.sender, header.closed_below};
    accept(*operation, header, packet, now);
  } else if (before(header.operation, channel->next_number)) {
    ++counters[DropReason::closed];
    // The sender is late and does not know: one answer a message.
    if ((header.flags & (TARPON_FLAG_TAIL | TARPON_FLAG_REPAIR)) == TARPON_FLAG_TAIL) {
      const Channel::Past* past = channel->find_past(header.operation);
      answer_past(*channel, header,
                  past != nullptr && signature_hash(past->signature) != header.signature);
    }
  } else {
    take_early(header, packet);
  }
}

void Endpoint::State::refuse_early(std::uint32_t tag, std::uint32_t number) {
  for (const EarlyRefused& one : early_refused) {
    if (one.known && one.tag == tag && one.number == number) return;
  }
  early_refused[next_refused++ % early_refused.size()] = {true, tag, number};
}

/// Makes room where an operation has waited so long that this rank may never begin it. Should it
/// begin all the same, what was parked is asked for. False when there is none.
bool Endpoint::State::forget_stale_early() {
  constexpr Duration kStale = 10s;
  const auto oldest = std::min_element(
      early.begin(), early.end(),
      [](const EarlyOperation& a, const EarlyOperation& b) { return a.since < b.since; });
  if (oldest == early.end() || latest - oldest->since < kStale) return false;
  for (const std::uint32_t cell : oldest->cells) parking.release(cell);
  refuse_early(oldest->tag, oldest->number);
  early.erase(oldest);
  return true;
}

EarlyOperation* Endpoint::State::early_for(std::uint32_t tag, std::uint32_t number) {
  for (EarlyOperation& one : early) {
    if (one.tag == tag && one.number == number) return &one;
  }
  if (early.size() >= options.early_operations && !forget_stale_early()) {
    refuse_early(tag, number);
    return nullptr;
  }
  EarlyOperation fresh;
  fresh.tag = tag;
  fresh.number = number;
  fresh.since = latest;
  fresh.peers.resize(options.world_size);
  early.push_back(std::move(fresh));
  return &early.back();
}

void Endpoint::State::take_early(const tarpon_header& header, std::span<const std::byte> packet) {
  const Channel* channel = find_channel(header.tag);
  const std::uint32_t lowest = channel == nullptr ? 0 : channel->lowest_open();
  if (header.operation - lowest >= options.window) {
    ++counters[DropReason::outside_window];
    return;
  }
  EarlyOperation* one = early_for(header.tag, header.operation);
  if (one == nullptr) {
    ++counters[DropReason::early_overrun];
    return;
  }
  EarlyOperation::FromPeer& from = one->peers[header.sender];
  const std::uint32_t cell =
      from.parked < options.initial_credit ? parking.park(packet) : ParkingLot::kNone;
  if (cell == ParkingLot::kNone) {
    from.overrun = true;
    ++counters[DropReason::early_overrun];
    return;
  }
  ++from.parked;
  ++counters.parked;
  one->cells.push_back(cell);
}

/// A peer that gets no DATA of us would else ask, and wait, for a sign of life.
void Endpoint::State::announce_if_silent(const Operation& operation, Rank peer) {
  if (operation.peers[peer].readies > 0) return;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    const Stage& stage = operation.stages[i];
    const std::uint16_t index = stage.send_of[peer];
    if (index != kNoMessage && stage.sends[index].slots > 0) return;
  }
  queue_control(
      {.type = TARPON_READY, .peer = peer, .tag = operation.tag, .operation = operation.number});
}

void Endpoint::State::heard_from(Operation& operation, Rank peer, Time now) {
  PeerView& view = operation.peers[peer];
  if (view.heard) return;
  view.heard = true;
  view.ready_at = kNever;
  ++operation.heard;
  announce_if_silent(operation, peer);
  // The peer's first packet may have overtaken our announcement: its grants still have to go out.
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    ReceiveMessage* message = operation.stages[i].receive_from(peer);
    if (message == nullptr || message->granted <= options.initial_credit) continue;
    queue_control({.type = TARPON_CREDIT,
                   .stage = i,
                   .peer = peer,
                   .tag = operation.tag,
                   .operation = operation.number,
                   .slot = message->granted,
                   .signature_hash = operation.signature_hash});
  }
  start_clock(operation, now);
}

void Endpoint::State::accept(Operation& operation, const tarpon_header& header,
                             std::span<const std::byte> packet, Time now) {
  if (header.signature != operation.signature_hash) {
    ++counters[DropReason::mismatch];
    return tell_mismatch(operation, header.sender, nullptr, now);
  }
  if (header.stage >= operation.stage_count) {
    ++counters[DropReason::message];
    return;
  }
  Stage& stage = operation.stages[header.stage];
  ReceiveMessage* message = stage.receive_from(header.sender);
  if (message == nullptr || header.slot >= message->slots ||
      header.length != message->length(header.slot, operation.slot_bytes)) {
    ++counters[DropReason::message];
    return;
  }
  if (message->presence.contains(header.slot)) {
    ++counters[DropReason::duplicate];
    return;
  }
  if (stage.closed) {
    ++counters[DropReason::closed];
    return;
  }
  const std::size_t index = static_cast<std::size_t>(message - stage.receives.data());
  if (stage.ordered && stage.turn[header.slot] != index) {
    const std::uint32_t cell = parking.park(packet);
    if (cell == ParkingLot::kNone) {
      ++counters[DropReason::parking_overrun];
      return;
    }
    message->presence.insert(header.slot);
    message->parked[header.slot] = cell;
    ++message->parked_count;
    ++counters.parked;
  } else {
    message->presence.insert(header.slot);
    deliver(operation, stage, index, header.slot, packet.subspan(TARPON_HEADER_BYTES),
            header.contributors);
    if (stage.ordered) deliver_parked(operation, stage, header.slot);
  }
  message->last_heard = now;
  note_losses(operation, *message, (header.flags & TARPON_FLAG_REPAIR) != 0, now);
  note_progress(operation, stage, *message);
}

void Endpoint::State::note_losses(const Operation& operation, ReceiveMessage& message,
                                  bool repaired, Time now) {
  const Presence& presence = message.presence;
  if (repaired) {
    // Whatever was sent before we asked should have come before the answer.
    message.asks = 0;
    message.presume_lost(message.granted, now);
    message.gap_since = now;
  } else if (presence.has_gap()) {
    message.presume_lost(presence.end(), now);
  } else {
    message.gap_since = kNever;
  }
  if (message.gap_since == now) timer = std::min(timer, message_due(operation, message));
}

void Endpoint::State::deliver(Operation& operation, Stage& stage, std::size_t index,
                              std::uint32_t slot, std::span<const std::byte> payload,
                              std::uint64_t contributors) {
  ReceiveMessage& message = stage.receives[index];
  ++counters.data_in;
  if (stage.ordered) stage.turn[slot] = static_cast<std::uint16_t>(index + 1);
  message.sink->deliver(message.peer, slot, payload, contributors);
  if (message.delivered()) delivered_one(operation, stage, message);
}

void Endpoint::State::deliver_parked(Operation& operation, Stage& stage, std::uint32_t slot) {
  while (stage.turn[slot] < stage.receives.size()) {
    const std::size_t index = stage.turn[slot];
    ReceiveMessage& message = stage.receives[index];
    const std::uint32_t cell = message.parked[slot];
    if (cell == ParkingLot::kNone) return;
    const std::span<const std::byte> packet = parking.at(cell);
    tarpon_header header;
    std::memcpy(&header, packet.data(), sizeof header);
    message.parked[slot] = ParkingLot::kNone;
    --message.parked_count;
    deliver(operation, stage, index, slot, packet.subspan(TARPON_HEADER_BYTES),
            header.contributors);
    parking.release(cell);
    note_progress(operation, stage, message);
  }
}

void Endpoint::State::delivered_one(Operation& operation, Stage& stage, ReceiveMessage& message) {
  if (stage.acknowledge) {
    const auto number = static_cast<std::uint8_t>(&stage - operation.stages.data());
    queue_control({.type = TARPON_CREDIT,
                   .stage = number,
                   .peer = message.peer,
                   .tag = operation.tag,
                   .operation = operation.number,
                   .slot = TARPON_CREDIT_COMPLETE,
                   .signature_hash = operation.signature_hash});
  }
  // A message given up as final was counted then.
  if (!message.final) message_ended(operation, stage);
}

void Endpoint::State::message_ended(Operation& operation, Stage& stage) {
  --open_receives;
  if (--stage.open_receives == 0) close_stage(operation, stage);
}

void Endpoint::State::close_stage(Operation& operation, Stage& stage) {
  bool complete = true;
  for (const ReceiveMessage& message : stage.receives) complete &= message.delivered();
  open_receives -= stage.open_receives;
  stage.open_receives = 0;
  stage.closed = true;
  Event event;
  event.kind = Event::Kind::stage_closed;
  event.stage = static_cast<std::uint8_t>(&stage - operation.stages.data());
  event.complete = complete;
  tell(operation, event);
  timer = std::min(timer, latest);  // what is due next has changed
}

void Endpoint::State::note_progress(Operation& operation, const Stage& stage,
                                    ReceiveMessage& message) {
  if (message.grant_due || message.granted >= message.slots) return;
  message.grant_due = true;
  grants_due.push_back({&operation, &stage, &message});
}

void Endpoint::State::extend_grants() {
  for (const GrantDue& due : grants_due) {
    due.message->grant_due = false;
    extend_grant(*due.operation, *due.stage, *due.message);
  }
  grants_due.clear();
}

void Endpoint::State::extend_grant(Operation& operation, const Stage& stage,
                                   ReceiveMessage& message) {
  if (message.granted >= message.slots) return;
  const std::uint32_t window = credit_window(operation.slot_bytes);
  const std::uint32_t used =
      std::max(message.presence.end(), message.written_off) - message.parked_count;
  const std::uint32_t target = message.slots - used < window ? message.slots : used + window;
  if (target <= message.granted) return;
  if (target != message.slots && target - message.granted < std::max(1u, window / 4)) return;
  message.granted = target;
  queue_control({.type = TARPON_CREDIT,
                 .stage = static_cast<std::uint8_t>(&stage - operation.stages.data()),
                 .peer = message.peer,
                 .tag = operation.tag,
                 .operation = operation.number,
                 .slot = target,
                 .signature_hash = operation.signature_hash});
}

}  // namespace tarpon
