// Packets in: every one is applied, or counted under one reason. This file checks headers and
// finds the operation of DATA; Receiver and control.cc do the rest.
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

/// Whether the sender may wait for an answer, if the operation is over here.
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
  state_->receiver.give_credit(state_->open_operations, now);
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

/// Takes the clock of a packet. Call it once for each train, since its packets left at one time.
void Endpoint::State::note_clock(const tarpon_header& header, Time now) {
  const std::optional<Duration> round_trip = clocks.receive(header, now);
  if (standings.is_silent(header.sender)) set_silent(header.sender, false, now);
  const std::uint32_t advertised = header.incast_codec & TARPON_INCAST_MASK;
  if (advertised != advertised_by[header.sender]) note_advertised(header.sender, advertised);
  if (!round_trip) return;
  inflow.round_trip(*round_trip);
  sender.outflow().round_trip(header.sender, *round_trip);
}

/// Applies a change of what `peer` advertises.
void Endpoint::State::note_advertised(Rank peer, std::uint32_t advertised) {
  advertised_by[peer] = static_cast<std::uint8_t>(advertised);
  sender.outflow().senders_at(peer, inflow.senders_at_once(advertised));
  const std::uint32_t slots = granter.unasked(advertised);
  for (Operation* operation : open_operations) {
    for (std::uint32_t i = 0; i < operation->stage_count; ++i) {
      SendMessage* message = operation->stages[i].send_to(peer);
      if (message != nullptr) message->grant = std::max(message->grant, slots);
    }
  }
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
    lateness.note_answer(*channel, *operation, header, now);
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

/// Whether the message was answered: its tail is many packets, and one answer is enough. After a
/// while that answer may have been lost, and the next packet is answered again.
bool Endpoint::State::was_told(const tarpon_header& header, Time now) {
  ClosedTold& told = closed_told[header.sender];
  const auto stage = static_cast<std::uint8_t>(tarpon_stage(&header));
  const bool same = told.known && told.tag == header.tag && told.operation == header.operation &&
                    told.stage == stage && now - told.at < options.quiet_delay;
  if (!same) told = {true, header.tag, header.operation, stage, now};
  return same;
}

/// Whether the packet belongs to this operation, a bounded one, in another epoch. Reports a later
/// epoch once; from then on there is nothing to fetch. Exact operations have no epoch.
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
    if (operation.late && !last.closed)
      receiver.close_stage(operation, last, Closing::given_up, latest);
  }
  return true;
}

/// Sends READY to a peer that was heard before this rank's READY could leave: it tells the terms,
/// and to a peer that gets no DATA from this rank it is the only sign of life.
void Endpoint::State::announce_to_heard(const Operation& operation, Rank peer) {
  if (operation.peers[peer].readies > 0) return;
  for (std::uint32_t i = 0; i < operation.stage_count && !operation.tells_terms; ++i) {
    const Stage& stage = operation.stages[i];
    const std::uint16_t index = stage.send_of[peer];
    if (index != kNoMessage && stage.sends[index].slots > 0) return;
  }
  control.push(ControlDue{
      .type = TARPON_READY, .peer = peer, .tag = operation.tag, .operation = operation.number});
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
    receiver.queue_credit(operation, i, peer, message->granted);
  }
}

void Endpoint::State::accept(Operation& operation, const tarpon_header& header,
                             std::span<const std::byte> packet, Time now) {
  if (header.signature != operation.signature_hash) {
    ++counters[DropReason::mismatch];
    return tell_mismatch(operation, header.sender, nullptr, now);
  }
  if ((header.flags & TARPON_FLAG_NONFINITE) != 0) take_marks(operation, marks_in(header));
  receiver.receive(operation, header, packet, now);
}

}  // namespace tarpon
