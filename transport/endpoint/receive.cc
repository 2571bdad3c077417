// Packets in: every one is applied, or counted under one reason. This file checks headers and
// finds the operation of DATA; Receiver and control.cc do the rest.
#include <algorithm>
#include <array>
#include <bit>
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

using HeaderWords = std::array<std::uint64_t, sizeof(tarpon_header) / sizeof(std::uint64_t)>;

/// The bits that are equal in all headers of a train.
constexpr HeaderWords train_bits() {
  std::array<std::uint8_t, sizeof(tarpon_header)> bytes{};
  bytes.fill(0xff);
  const auto clear = [&bytes](std::size_t at, std::size_t size) {
    for (std::size_t i = at; i < at + size; ++i) bytes[i] = 0;
  };
  clear(offsetof(tarpon_header, slot), sizeof(tarpon_header::slot));
  clear(offsetof(tarpon_header, length), sizeof(tarpon_header::length));
  clear(offsetof(tarpon_header, packet_number), sizeof(tarpon_header::packet_number));
  clear(offsetof(tarpon_header, check), sizeof(tarpon_header::check));
  return std::bit_cast<HeaderWords>(bytes);
}

/// Whether both packets, not shorter than headers, could be of one train.
bool in_one_train(const RxPacket& a, const RxPacket& b) {
  constexpr HeaderWords kBits = train_bits();
  HeaderWords first, second;
  std::memcpy(&first, a.data, sizeof first);
  std::memcpy(&second, b.data, sizeof second);
  std::uint64_t differ = 0;
  for (std::size_t i = 0; i < kBits.size(); ++i) differ |= (first[i] ^ second[i]) & kBits[i];
  return differ == 0 && a.source == b.source;
}

/// Fetches what the loop over a batch reads next: its headers lie scattered over the receive
/// buffers, so each would be a cache miss.
void prefetch(std::span<const RxPacket> packets) {
  if (packets.size() > 2) __builtin_prefetch(packets[2].data);
}

}  // namespace

void Endpoint::on_receive(Time now, std::span<const RxPacket> packets) {
  state_->latest = now;
  if (packets.empty()) return;
  state_->counters.packets_in += packets.size();
  LatestData latest;
  while (!packets.empty()) packets = packets.subspan(state_->receive(now, packets, latest));
  state_->clocks.release_packet();
  state_->inflow.judge(now);
  state_->receiver.give_credit(state_->open_operations, now);
  state_->forget_passed_tags();
}

/// Takes the first of `packets`, and the others of its train. Returns their number.
std::size_t Endpoint::State::receive(Time now, std::span<const RxPacket> packets,
                                     LatestData& latest_data) {
  prefetch(packets);
  const RxPacket& packet = packets.front();
  if (packet.length < TARPON_HEADER_BYTES) {
    ++counters[DropReason::runt];
    return 1;
  }
  tarpon_header header;
  std::memcpy(&header, packet.data, sizeof header);
  const std::span<const std::byte> payload =
      std::span(packet.data, packet.length).subspan(TARPON_HEADER_BYTES);

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
    return take_data(now, header, packets, latest_data);
  } else {
    take_control(now, {header, payload});
  }
  return 1;
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

/// As receive(). `header`: of the first packet, which is sound.
std::size_t Endpoint::State::take_data(Time now, const tarpon_header& header,
                                       std::span<const RxPacket> packets, LatestData& latest_data) {
  if (latest_data.continues(header)) {
    return accept(*latest_data.operation, header, packets, now);
  }
  latest_data.operation = nullptr;
  note_clock(header, now);
  Channel* channel = channel_of(header);
  if (channel == nullptr || channel->lost) {
    take_unknown(now, channel, header, packets.front());
    return 1;
  }
  note_closed_below(*channel, header, now);
  if (Operation* operation = channel->find_open(header.operation)) {
    if (other_epoch(*operation, header)) {
      ++counters[DropReason::epoch];
      return 1;
    }
    heard_from(*operation, header.sender, {});
    another_has_begun(*operation);
    lateness.note_answer(*channel, *operation, header, now);
    if (header.stage_time != 0) operation->peers[header.sender].stage_time = header.stage_time;
    latest_data = {operation, header.sender, header.closed_below};
    return accept(*operation, header, packets, now);
  }
  if (before(header.operation, channel->next_number)) {
    take_past(now, *channel, header);
  } else {
    take_early(header, packets.front());
  }
  return 1;
}

/// Takes DATA of a tag that this rank does not know, or whose numbers are lost.
void Endpoint::State::take_unknown(Time now, const Channel* channel, const tarpon_header& header,
                                   const RxPacket& packet) {
  if (channel == nullptr && !tags.remembers(header.tag)) return take_early(header, packet);
  ++counters[DropReason::closed];
  if (!tells_of_its_end(header)) return;
  if (channel == nullptr) {
    if (!clocks.overtaken()) tell_forgotten(header, header.sender);
  } else if (!was_told(header, now)) {
    tell_forgotten(header, options.rank);
  }
}

/// Takes DATA of an operation that is over here.
void Endpoint::State::take_past(Time now, Channel& channel, const tarpon_header& header) {
  ++counters[DropReason::closed];
  ++channel.late_packets;
  // The sender is late and does not know.
  if (!tells_of_its_end(header) || was_told(header, now)) return;
  const PastOperation* past = channel.find_past(header.operation);
  answer_past(channel, header,
              past != nullptr && past->epoch.number == header.epoch &&
                  signature_hash(past->signature) != header.signature,
              0);
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
  operation.peers[header.sender].other_epoch = true;  // nothing of it can be used here
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
  if (!view.asked && !operation.late) view.ready_at = kNever;
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

/// Takes the train of the first of `packets`, whose header is `header`. Returns its length.
std::size_t Endpoint::State::accept(Operation& operation, const tarpon_header& header,
                                    std::span<const RxPacket> packets, Time now) {
  if (header.signature != operation.signature_hash) {
    ++counters[DropReason::mismatch];
    tell_mismatch(operation, header.sender, nullptr, now);
    return 1;
  }
  if ((header.flags & TARPON_FLAG_NONFINITE) != 0) take_marks(operation, marks_in(header));
  const std::span<const RxPacket> train = train_of(packets, header.slot);
  receiver.receive(operation, header, train, now);
  return train.size();
}

/// The train of the first packet, which has `slot`: the packets whose slots follow one another.
/// Their headers pass the same checks.
std::span<const RxPacket> Endpoint::State::train_of(std::span<const RxPacket> packets,
                                                    std::uint32_t slot) const {
  std::size_t count = 1;
  for (; count < packets.size(); ++count) {
    prefetch(packets.subspan(count));
    const RxPacket& packet = packets[count];
    if (packet.length < TARPON_HEADER_BYTES || !in_one_train(packets[0], packet)) break;
    tarpon_header header;
    std::memcpy(&header, packet.data, sizeof header);
    if (header.slot != ++slot || header.length != packet.length - TARPON_HEADER_BYTES) break;
    if (options.integrity == TARPON_INTEGRITY_CRC32C &&
        packet_check(header, std::span(packet.data, packet.length).subspan(sizeof header)) !=
            header.check) {
      break;
    }
  }
  return packets.first(count);
}

}  // namespace tarpon
