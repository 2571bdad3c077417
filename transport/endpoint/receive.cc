// Packets in: every one is applied, or counted under one reason. Here: the checks, and DATA.
#include <algorithm>
#include <cstring>

#include "transport/endpoint/state.h"
#include "transport/integrity.h"

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

/// Whether its sender may wait for an answer, should the operation be over here.
bool tells_of_its_end(const tarpon_header& header) {
  return (header.flags & (TARPON_FLAG_TAIL | TARPON_FLAG_REPAIR)) == TARPON_FLAG_TAIL;
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
  state_->clocks.release_packet();
  if (packets.empty()) return;
  state_->inflow.judge(now);
  state_->give_credit(now);
  state_->forget_passed_tags();
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
             header.sender != packet.source || standings.is_dead(header.sender)) {
    ++counters[DropReason::sender];
  } else if (header.communicator != options.communicator) {
    ++counters[DropReason::communicator];
  } else if ((header.flags & TARPON_INTEGRITY_MASK) >> TARPON_INTEGRITY_SHIFT !=
             options.integrity) {
    ++counters[DropReason::integrity];
  } else if (options.integrity == TARPON_INTEGRITY_CRC32C &&
             packet_check(header, payload) != header.check) {
    ++counters[DropReason::integrity];
  } else if (header.incarnation != 0) {
    ++counters[DropReason::epoch];
  } else if (header.type == TARPON_DATA) {
    take_data(now, header, whole, run);
  } else {
    take_control(now, header, payload);
  }
}

/// Once a train: its packets left at one time.
void Endpoint::State::note_clock(const tarpon_header& header, Time now) {
  const std::optional<Duration> round_trip = clocks.receive(header, now);
  if (standings.is_silent(header.sender)) set_silent(header.sender, false, now);
  const std::uint32_t advertised = header.incast_codec & TARPON_INCAST_MASK;
  if (advertised != advertised_by[header.sender]) note_advertised(header.sender, advertised);
  if (!round_trip) return;
  inflow.round_trip(*round_trip);
  sender.outflow().round_trip(header.sender, *round_trip);
}

void Endpoint::State::take_data(Time now, const tarpon_header& header,
                                std::span<const std::byte> packet, DataRun& run) {
  if (run.continues(header)) return accept(*run.operation, header, packet, now);
  run.operation = nullptr;
  note_clock(header, now);
  Channel* channel = channel_of(header);
  if (channel == nullptr) {
    if (!tags.remembers(header.tag)) return take_early(header, packet);
    ++counters[DropReason::closed];
    if (tells_of_its_end(header) && !clocks.overtaken()) tell_forgotten(header, header.sender);
    return;
  }
  if (channel->lost) {
    ++counters[DropReason::closed];
    if (tells_of_its_end(header) && !was_told(header, now)) tell_forgotten(header, options.rank);
    return;
  }
  note_closed_below(*channel, header, now);
  if (Operation* operation = find_open(*channel, header.operation)) {
    if (other_epoch(*operation, header)) {
      ++counters[DropReason::epoch];
      return;
    }
    heard_from(*operation, header.sender, {});
    another_has_begun(*operation);
    note_answer(*channel, *operation, header);
    if (header.stage_time != 0) operation->peers[header.sender].stage_time = header.stage_time;
    run = {operation, header.sender, header.closed_below};
    accept(*operation, header, packet, now);
  } else if (before(header.operation, channel->next_number)) {
    ++counters[DropReason::closed];
    ++channel->late_packets;
    // The sender is late and does not know.
    if (tells_of_its_end(header) && !was_told(header, now)) {
      const PastOperation* past = channel->find_past(header.operation);
      answer_past(*channel, header,
                  past != nullptr && past->epoch.number == header.epoch &&
                      signature_hash(past->signature) != header.signature,
                  0);
    }
  } else {
    take_early(header, packet);
  }
}

/// One answer a message: its tail is many packets. After a while the answer may have been lost.
bool Endpoint::State::was_told(const tarpon_header& header, Time now) {
  ClosedTold& told = closed_told[header.sender];
  const auto stage = static_cast<std::uint8_t>(tarpon_stage(&header));
  const bool same = told.known && told.tag == header.tag && told.operation == header.operation &&
                    told.stage == stage && now - told.at < options.quiet_delay;
  if (!same) told = {true, header.tag, header.operation, stage, now};
  return same;
}

/// Whether the packet is of this operation, a bounded one, in another epoch. A later one is told
/// of, once; from then on there is nothing to fetch. Exact ones have none.
bool Endpoint::State::other_epoch(Operation& operation, const tarpon_header& header) {
  if (!operation.bounded || header.epoch == operation.epoch.number) return false;
  if (later_epoch(header.epoch, operation.latest_epoch)) {
    operation.latest_epoch = header.epoch;
    Event event;
    event.kind = Event::Kind::epoch;
    event.peer = header.sender;
    event.epoch = {header.epoch,
                   static_cast<std::uint8_t>(header.incast_codec >> TARPON_CODEC_SHIFT),
                   header.stride};
    tell(operation, event);
    Stage& last = operation.stages[operation.stage_count - 1];
    if (operation.late && !last.closed) close_stage(operation, last, Closing::given_up);
  }
  return true;
}

/// READY to a peer that was heard before this rank's own could leave: it tells the terms, and to a
/// peer that gets no DATA from this rank it is the only sign of life.
void Endpoint::State::announce_to_heard(const Operation& operation, Rank peer) {
  if (operation.peers[peer].readies > 0) return;
  for (std::uint32_t i = 0; i < operation.stage_count && !operation.tells_terms; ++i) {
    const Stage& stage = operation.stages[i];
    const std::uint16_t index = stage.send_of[peer];
    if (index != kNoMessage && stage.sends[index].slots > 0) return;
  }
  queue_control(
      {.type = TARPON_READY, .peer = peer, .tag = operation.tag, .operation = operation.number});
}

/// `before`: how long before its packet the operation began at `peer`.
void Endpoint::State::heard_from(Operation& operation, Rank peer, Duration before) {
  PeerView& view = operation.peers[peer];
  const Time begun = begun_before(before);
  // DATA may have overtaken the READY that tells how long the peer encoded.
  const bool tells_more = before > Duration::zero() && begun < view.begun;
  if (view.begun == kNever || (tells_more && operation.started == kNever)) {
    view.begun = begun;
    view.read_after = clocks.age();
  }
  if (view.heard) return;
  view.heard = true;
  journal.note(RecordKind::first_packet, operation, peer, latest);
  if (!view.asked) view.ready_at = kNever;
  ++operation.heard;
  granter.heard(operation, peer);
  announce_to_heard(operation, peer);
  // The peer's first packet may have overtaken our announcement: its grants still have to go out.
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    ReceiveMessage* message = operation.stages[i].receive_from(peer);
    if (message == nullptr || message->granted <= operation.unasked) continue;
    journal.note(RecordKind::credit, operation, peer, latest, message->granted, i);
    queue_credit(operation, i, peer, message->granted);
  }
}

void Endpoint::State::accept(Operation& operation, const tarpon_header& header,
                             std::span<const std::byte> packet, Time now) {
  if (header.signature != operation.signature_hash) {
    ++counters[DropReason::mismatch];
    return tell_mismatch(operation, header.sender, nullptr, now);
  }
  if ((header.flags & TARPON_FLAG_NONFINITE) != 0) take_nonfinite(operation, nonfinite_in(header));
  const std::uint32_t number = tarpon_stage(&header);
  if (number >= operation.stage_count) {
    ++counters[DropReason::message];
    return;
  }
  Stage& stage = operation.stages[number];
  ReceiveMessage* message = stage.receive_from(header.sender);
  if (message == nullptr || header.slot >= message->slots ||
      header.length != message->length(header.slot, operation.slot_bytes)) {
    ++counters[DropReason::message];
    return;
  }
  if (message->presence.contains(header.slot)) {
    // Where slots are given up it may be one of those, too late.
    ++counters[message->given_up > 0 ? DropReason::closed : DropReason::duplicate];
    if (message->given_up > 0) ++operation.late_packets;
    return;
  }
  if (stage.closed) {
    ++counters[DropReason::closed];
    ++operation.late_packets;
    return;
  }
  if (!message->flows_known) learn_flows(operation, *message, header);
  count_arrival(operation, *message, header, packet.size());
  const std::size_t index = static_cast<std::size_t>(message - stage.receives.data());
  if (stage.ordered && stage.turn[header.slot] != index) {
    const std::uint32_t cell = order_parking.park(packet);
    if (cell == ParkingLot::kNone) {
      ++counters[DropReason::parking_overrun];
      return;
    }
    message->insert(header.slot);
    message->parked[header.slot] = cell;
    ++message->parked_count;
    ++counters.parked;
  } else {
    message->insert(header.slot);
    deliver(operation, stage, index, header.slot, packet.subspan(TARPON_HEADER_BYTES),
            header.contributors);
    if (stage.ordered) deliver_parked(operation, stage, header.slot);
  }
  message->last_heard = now;
  note_arrival(stage, *message, header, now);
  note_losses(operation, *message, header, now);
  granter.progressed(operation, *message);
}

/// The first DATA of a message says how its sender spreads it.
void Endpoint::State::learn_flows(const Operation& operation, ReceiveMessage& message,
                                  const tarpon_header& header) {
  message.flows_known = true;
  message.stripes = {stripe_slots(operation.slot_bytes), tarpon_flows(&header)};
  const std::uint64_t bytes = std::uint64_t{message.slots} * operation.slot_bytes;
  if (bytes < kLargeMessage || flows_of[message.peer] == message.stripes.flows) return;
  flows_of[message.peer] = static_cast<std::uint8_t>(message.stripes.flows);
  inflow.flows_changed();
}

/// For the control of what comes in, before the slot is marked present.
void Endpoint::State::count_arrival(const Operation& operation, const ReceiveMessage& message,
                                    const tarpon_header& header, std::size_t bytes) {
  const std::uint32_t unasked = operation.unasked;
  inflow.arrived(bytes, header.slot < unasked);
  if (const std::uint32_t end = message.end_of_flow(header.slot); header.slot > end) {
    const std::uint32_t early = message.overtaken_by(header.slot, unasked);
    inflow.overtaken(message.overtaken_by(header.slot, header.slot) - early, early);
  } else if (header.slot < end && (header.flags & TARPON_FLAG_REPAIR) == 0) {
    inflow.found(header.slot < unasked);
  }
}

void Endpoint::State::note_arrival(Stage& stage, ReceiveMessage& message,
                                   const tarpon_header& header, Time now) {
  stage.last_arrival = now;
  if (message.tail_seen || (header.flags & TARPON_FLAG_TAIL) == 0) return;
  tail_ended(stage, message);
  if (stage.tails_missing == 0 && stage.early > Duration::zero()) timer = std::min(timer, now);
}

void Endpoint::State::tail_ended(Stage& stage, ReceiveMessage& message) {
  if (message.tail_seen) return;
  message.tail_seen = true;
  --stage.tails_missing;
}

void Endpoint::State::note_losses(const Operation& operation, ReceiveMessage& message,
                                  const tarpon_header& header, Time now) {
  const std::uint32_t flow = message.stripes.flow_of(header.slot);
  message.asks = std::min(message.asks, 1u);  // the sender sends: it was not gone, only waiting
  if ((header.flags & TARPON_FLAG_REPAIR) != 0) {
    message.asked_for -= message.asked_for > 0 ? 1 : 0;
    // Whatever was sent of that flow before we asked should have come before the answer.
    message.asks = 0;
    message.presume_lost(flow, message.granted_when_asked, now);
    message.gap_since = now;
  } else if ((message.gaps >> flow & 1) != 0) {
    message.presume_lost(flow, message.flows[flow].end, now);
  } else if (message.gaps == 0) {
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
    const std::span<const std::byte> packet = order_parking.at(cell);
    tarpon_header header;
    std::memcpy(&header, packet.data(), sizeof header);
    message.parked[slot] = ParkingLot::kNone;
    --message.parked_count;
    deliver(operation, stage, index, slot, packet.subspan(TARPON_HEADER_BYTES),
            header.contributors);
    order_parking.release(cell);
    granter.progressed(operation, message);
  }
}

void Endpoint::State::delivered_one(Operation& operation, Stage& stage, ReceiveMessage& message) {
  if (stage.acknowledge) {
    const auto number = static_cast<std::uint8_t>(&stage - operation.stages.data());
    queue_credit(operation, number, message.peer, TARPON_CREDIT_COMPLETE);
  }
  // A message given up as final was counted then.
  if (!message.final) message_ended(operation, stage, message);
}

void Endpoint::State::message_ended(Operation& operation, Stage& stage, ReceiveMessage& message) {
  tail_ended(stage, message);
  granter.ended(1);
  if (--stage.open_receives != 0) return;
  const bool lost = std::any_of(stage.receives.begin(), stage.receives.end(),
                                [](const ReceiveMessage& one) { return one.given_up > 0; });
  close_stage(operation, stage, lost ? Closing::early : Closing::given_up);
}

/// `closing`: why, should something be missing.
void Endpoint::State::close_stage(Operation& operation, Stage& stage, Closing closing) {
  bool complete = true;
  for (const ReceiveMessage& message : stage.receives) {
    complete &= message.delivered() && message.given_up == 0;
  }
  granter.ended(stage.open_receives);
  stage.open_receives = 0;
  stage.closed = true;
  Event event;
  event.kind = Event::Kind::stage_closed;
  event.stage = static_cast<std::uint8_t>(&stage - operation.stages.data());
  event.closing = complete ? Closing::complete : closing;
  if (operation.started != kNever) event.elapsed = latest - operation.started;
  tell(operation, event);
  timer = std::min(timer, latest);  // what is due next has changed
}

}  // namespace tarpon
