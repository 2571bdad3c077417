// Packets in: every one is applied, or counted under one reason.
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

/// Whether `a` comes before `b` in the numbering of operations, which wraps.
bool before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
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
      queue_control({.type = TARPON_CLOSED,
                     .peer = header.sender,
                     .tag = header.tag,
                     .operation = header.operation});
    }
  } else {
    take_early(header, packet);
  }
}

EarlyOperation* Endpoint::State::early_for(std::uint32_t tag, std::uint32_t number) {
  for (EarlyOperation& one : early) {
    if (one.tag == tag && one.number == number) return &one;
  }
  if (early.size() >= options.early_operations) return nullptr;
  EarlyOperation fresh;
  fresh.tag = tag;
  fresh.number = number;
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

void Endpoint::State::heard_from(Operation& operation, Rank peer, Time now) {
  PeerView& view = operation.peers[peer];
  if (view.heard) return;
  view.heard = true;
  view.ready_at = kNever;
  ++operation.heard;
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
  note_losses(*message, (header.flags & TARPON_FLAG_REPAIR) != 0, now);
  note_progress(operation, stage, *message);
}

void Endpoint::State::note_losses(ReceiveMessage& message, bool repaired, Time now) {
  const Presence& presence = message.presence;
  if (repaired) {
    // Whatever was sent before we asked should have come before the answer.
    message.asks = 0;
    message.presume_lost(message.granted, now);
  } else if (presence.has_gap()) {
    message.presume_lost(presence.end(), now);
  } else {
    message.gap_since = kNever;
  }
  if (message.gap_since == now) timer = std::min(timer, message_due(message));
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
  const std::uint32_t used = message.presence.end() - message.parked_count;
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

void Endpoint::State::tell_mismatch(Operation& operation, Rank peer, const Signature* theirs,
                                    Time now) {
  PeerView& view = operation.peers[peer];
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
    view.ready_at = now + options.quiet_delay;
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
  const auto delta =
      static_cast<std::int16_t>(header.closed_below - static_cast<std::uint16_t>(header.operation));
  const std::uint32_t below = header.operation + static_cast<std::uint32_t>(std::int32_t{delta});
  std::uint32_t& known = channel.closed_below_of[header.sender];
  if (!before(known, below)) return;
  known = below;
  for (Operation* operation : channel.open) {
    if (!before(operation->number, below)) continue;
    for (std::uint8_t i = 0; i < operation->stage_count; ++i) {
      Stage& stage = operation->stages[i];
      apply_grant(*operation, i, header.sender, TARPON_CREDIT_COMPLETE);
      ReceiveMessage* message = stage.receive_from(header.sender);
      if (message == nullptr || stage.closed || message->final || message->delivered()) continue;
      if (message->repair_below > 0) {  // nothing more comes by itself, but it can be asked for
        message->presume_lost(message->slots, now - options.gap_delay);
        timer = now;
        continue;
      }
      message->final = true;
      message_ended(*operation, stage);
    }
  }
  if (!channel.kept.empty()) release_kept(channel);
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
  message->repair_count = 0;
  std::uint32_t asked = 0;
  const std::size_t ranges = payload.size() / sizeof(tarpon_range);
  for (std::size_t i = 0; i < std::min(ranges, kMaxRepairRanges); ++i) {
    tarpon_range range;
    std::memcpy(&range, payload.data() + i * sizeof range, sizeof range);
    // Slots that were never sent need no repair; ranges ascend, so that none is asked for twice.
    if (range.first >= message->next || range.first < asked) continue;
    range.count = std::min(range.count, message->next - range.first);
    asked = range.first + range.count;
    if (range.count > 0) message->repairs[message->repair_count++] = range;
  }
}

void Endpoint::State::apply_repair_of_closed(Channel& channel, const tarpon_header& header,
                                             std::span<const std::byte> payload) {
  const Channel::Kept* kept = find_kept(channel, header.operation);
  if (kept == nullptr || kept->data->stage != header.stage ||
      kept->signature_hash != header.signature) {
    return refuse_control(DropReason::unexpected);
  }
  const auto slots = static_cast<std::uint32_t>(kept->data->contributors.size());
  RetainedDue due;
  due.peer = header.sender;
  due.tag = header.tag;
  due.number = header.operation;
  std::uint32_t asked = 0;
  for (std::size_t i = 0; i < std::min(payload.size() / sizeof(tarpon_range), kMaxRepairRanges);
       ++i) {
    tarpon_range range;
    std::memcpy(&range, payload.data() + i * sizeof range, sizeof range);
    if (range.first >= slots || range.first < asked) continue;
    range.count = std::min(range.count, slots - range.first);
    asked = range.first + range.count;
    if (range.count > 0) due.ranges[due.count++] = range;
  }
  // One request a peer and operation: the newest one says what is still missing.
  std::erase_if(retained_due, [&](const RetainedDue& old) {
    return old.peer == due.peer && old.tag == due.tag && old.number == due.number;
  });
  if (due.count > 0) retained_due.push_back(due);
}

void Endpoint::State::take_early_control(const tarpon_header& header,
                                         std::span<const std::byte> payload) {
  const Channel* channel = find_channel(header.tag);
  const std::uint32_t lowest = channel == nullptr ? 0 : channel->lowest_open();
  if (header.operation - lowest >= options.window) {
    return refuse_control(DropReason::outside_window);
  }
  if (header.type != TARPON_READY) return;  // repeated once both sides have the operation open
  EarlyOperation* one = early_for(header.tag, header.operation);
  if (one == nullptr) return refuse_control(DropReason::early_overrun);
  tarpon_ready ready;
  std::memcpy(&ready, payload.data(), sizeof ready);
  EarlyOperation::FromPeer& from = one->peers[header.sender];
  from.announced = true;
  std::copy(std::begin(ready.signature), std::end(ready.signature), from.signature.begin());
  std::copy(std::begin(ready.grant), std::end(ready.grant), from.grants.begin());
}

/// For what was counted as applied on its way in.
void Endpoint::State::refuse_control(DropReason reason) {
  --counters.control_in;
  ++counters[reason];
}

void Endpoint::State::take_control(Time now, const tarpon_header& header,
                                   std::span<const std::byte> payload) {
  const bool well_formed = header.type == TARPON_READY ? payload.size() == sizeof(tarpon_ready)
                           : header.type == TARPON_REPAIR
                               ? payload.size() % sizeof(tarpon_range) == 0
                               : true;
  if (!well_formed) {
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
    if (!before(header.operation, channel->next_number)) return take_early_control(header, payload);
    if (header.type == TARPON_READY) {
      queue_control({.type = TARPON_CLOSED,
                     .peer = header.sender,
                     .tag = header.tag,
                     .operation = header.operation});
    } else if (header.type == TARPON_REPAIR) {
      apply_repair_of_closed(*channel, header, payload);
    }
    return;
  }
  heard_from(*operation, header.sender, now);
  if (header.type == TARPON_CLOSED) return;  // its closed_below has said the rest
  if (header.type == TARPON_ABORT) {
    Event event;
    event.kind = Event::Kind::aborted;
    event.peer = header.sender;
    event.reason = header.slot;
    return tell(*operation, event);
  }
  if (header.type == TARPON_READY) {
    tarpon_ready ready;
    std::memcpy(&ready, payload.data(), sizeof ready);
    Signature theirs;
    std::copy(std::begin(ready.signature), std::end(ready.signature), theirs.begin());
    if (theirs != operation->signature) {
      if (header.slot > 0) operation->peers[header.sender].mismatch_answered = false;
      return tell_mismatch(*operation, header.sender, &theirs, now);
    }
    for (std::uint8_t i = 0; i < operation->stage_count; ++i) {
      apply_grant(*operation, i, header.sender, ready.grant[i]);
    }
    // A repeated READY says that the peer has heard nothing of us: answer.
    if (header.slot > 0) {
      queue_control({.type = TARPON_CREDIT,
                     .stage = 0,
                     .peer = header.sender,
                     .tag = header.tag,
                     .operation = header.operation,
                     .slot = options.initial_credit,
                     .signature_hash = operation->signature_hash});
    }
    return;
  }
  if (header.signature != operation->signature_hash) {
    refuse_control(DropReason::mismatch);
    return tell_mismatch(*operation, header.sender, nullptr, now);
  }
  if (header.stage >= operation->stage_count) return refuse_control(DropReason::unexpected);
  apply_grant(*operation, header.stage, header.sender, header.slot);
  if (header.type == TARPON_REPAIR) apply_repair(*operation, header, payload);
}

}  // namespace tarpon
