#include "transport/endpoint/router.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "transport/integrity.h"
#include "transport/pair_tag.h"
#include "transport/wire/train.h"

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

std::span<const std::byte> payload_of(const RxPacket& packet) {
  return std::span(packet.data, packet.length).subspan(TARPON_HEADER_BYTES);
}

}  // namespace

void Router::receive(std::span<const RxPacket> packets, Time now) {
  parts_.counters.packets_in += packets.size();
  LatestData latest;
  while (!packets.empty()) packets = packets.subspan(receive_train(packets, latest, now));
  parts_.clocks.release_packet();
}

/// Takes the first of `packets`, and the others of its train. Returns their number.
std::size_t Router::receive_train(std::span<const RxPacket> packets, LatestData& latest, Time now) {
  prefetch_header(packets);
  const RxPacket& packet = packets.front();
  if (packet.length < TARPON_HEADER_BYTES) {
    ++parts_.counters[DropReason::runt];
    return 1;
  }
  tarpon_header header;
  std::memcpy(&header, packet.data, sizeof header);
  if (!is_sound(header, packet)) return 1;
  if (header.type == TARPON_DATA) return take_data(header, packets, latest, now);
  take_control({header, payload_of(packet)}, now);
  return 1;
}

/// Whether the packet is one of this job and endpoint. Counts it as dropped if not.
bool Router::is_sound(const tarpon_header& header, const RxPacket& packet) {
  const EndpointOptions& options = parts_.options;
  const std::span<const std::byte> payload = payload_of(packet);
  const auto refuse = [this](DropReason reason) {
    ++parts_.counters[reason];
    return false;
  };
  const tarpon_header_verdict verdict = tarpon_check_header(
      &header, options.job, static_cast<std::uint32_t>(payload.size()) + tarpon_tag_bytes(&header));
  if (verdict != TARPON_HEADER_OK) return refuse(reason_of(verdict));
  if (header.sender >= options.world_size || header.sender == options.rank ||
      header.sender != packet.source || parts_.participants.is_dead(header.sender)) {
    return refuse(DropReason::sender);
  }
  if (header.communicator != options.communicator) return refuse(DropReason::communicator);
  if (tarpon_integrity_of(&header) != options.integrity) {
    return refuse(DropReason::integrity);
  }
  if (options.integrity == TARPON_INTEGRITY_CRC32C &&
      packet_check(header, payload) != header.check) {
    return refuse(DropReason::integrity);
  }
  if (header.incarnation != 0) return refuse(DropReason::epoch);
  const std::uint64_t both = bit(header.sender) | bit(options.rank);
  return (ranks_of_tag(header.tag) & both) == both || refuse(DropReason::sender);
}

/// Takes the clock of a packet. Call it once for each train, since its packets left at one time.
void Router::note_clock(const tarpon_header& header, Time now) {
  const std::optional<Duration> round_trip = parts_.clocks.receive(header, now);
  parts_.heartbeats.heard(header.sender, now);
  note_advertised(header.sender, header.incast_codec & TARPON_INCAST_MASK);
  if (!round_trip) return;
  parts_.granter.inflow().round_trip(*round_trip);
  parts_.sender.outflow().round_trip(header.sender, *round_trip);
}

/// Applies what `peer` advertises, if that has changed.
void Router::note_advertised(Rank peer, std::uint32_t advertised) {
  if (!parts_.granter.note_advertised(peer, advertised)) return;
  const Inflow& inflow = parts_.granter.inflow();
  parts_.sender.outflow().senders_at(peer, inflow.senders_at_once(advertised));
  const std::uint32_t slots = parts_.granter.unasked(advertised);
  for (Operation* operation : parts_.operations.states()) {
    for (std::uint32_t i = 0; i < operation->stage_count; ++i) {
      SendMessage* message = operation->stages[i].send_to(peer);
      if (message != nullptr) message->grant(slots);
    }
  }
}

/// As receive_train(). `header`: of the first packet, which is sound.
std::size_t Router::take_data(const tarpon_header& header, std::span<const RxPacket> packets,
                              LatestData& latest, Time now) {
  if (latest.continues(header)) return latest.operation->on_data(header, packets, now);
  latest.operation = nullptr;
  note_clock(header, now);
  TagState* const tag_state = state_of(header);
  if (tag_state == nullptr && !parts_.tags.remembers(header.tag)) {
    parts_.early.take_data(header, packets.front(), now);
    return 1;
  }
  if (tag_state == nullptr || tag_state->lost) {
    parts_.past.take_data_of_unknown(tag_state, header, now);
    return 1;
  }
  parts_.passed.note_header(*tag_state, header, now);
  if (OpenOperation* const operation = tag_state->find_open(header.operation)) {
    if (!operation->admit(header, now)) return 1;
    latest = {operation, header.sender, header.closed_below};
    return operation->on_data(header, packets, now);
  }
  if (before(header.operation, tag_state->next_number)) {
    parts_.past.take_data(*tag_state, header, now);
  } else {
    parts_.early.take_data(header, packets.front(), now);
  }
  return 1;
}

void Router::take_control(const ControlPacket& packet, Time now) {
  if (!packet.is_well_formed(max_entries_)) {
    ++parts_.counters[DropReason::fields];
    return;
  }
  const tarpon_header& header = packet.header();
  ++parts_.counters.control_in;
  parts_.journal.note_in(packet, now);
  // Late probes of the search for the size of slots: they carry no clock.
  if (packet.type() == TARPON_PROBE || packet.type() == TARPON_PROBE_REPLY) return;
  note_clock(header, now);
  if (packet.type() == TARPON_HEARTBEAT) return parts_.heartbeats.take(packet, now);
  if (packet.type() == TARPON_AGREEMENT) return take_agreement(packet);
  TagState* const tag_state = state_of(header);
  if (tag_state == nullptr) {
    if (!parts_.tags.remembers(header.tag)) return parts_.early.take_control(packet, now);
    // Packets of operations that the peer has passed may still be on their way: they prove nothing.
    if (packet.asks() && !parts_.clocks.overtaken()) {
      parts_.past.tell_forgotten(header, header.sender);
    }
    return;
  }
  if (packet.type() == TARPON_ABORT && packet.reason() == TARPON_ABORT_FORGOTTEN &&
      packet.names(parts_.options.rank)) {
    return take_told_forgotten(*tag_state, header, now);
  }
  if (tag_state->lost) {
    if (packet.asks()) parts_.past.tell_forgotten(header, parts_.options.rank);
    return;
  }
  OpenOperation* const operation = tag_state->find_open(header.operation);
  if (operation != nullptr && packet.type() == TARPON_ABORT) {
    operation->on_control(packet, now);
    // Only now: it closes the stages that wait for no other peer, which looks like a result.
    return parts_.passed.note_header(*tag_state, header, now);
  }
  parts_.passed.note_header(*tag_state, header, now);
  if (operation != nullptr) {
    operation->on_control(packet, now);
  } else if (before(header.operation, tag_state->next_number)) {
    parts_.past.take_control(*tag_state, packet);
  } else {
    parts_.early.take_control(packet, now);
  }
}

/// Keeps the message for the caller, who takes all after each batch.
void Router::take_agreement(const ControlPacket& packet) {
  const auto kept =
      std::count_if(agreements_.begin(), agreements_.end(),
                    [&](const AgreementPacket& one) { return one.peer == packet.sender(); });
  if (static_cast<std::size_t>(kept) == ControlQueue::kMaxAgreements) {
    return parts_.counters.refuse_control(DropReason::early_overrun);
  }
  agreements_.push_back({packet.sender(), packet.agreement()});
}

/// The state of the tag that a packet belongs to; nullptr where the tag was never used here, is not
/// remembered, or every peer had passed the operation before.
TagState* Router::state_of(const tarpon_header& header) {
  TagHistory& tags = parts_.tags;
  if (TagState* const tag_state = tags.find(header.tag)) return tag_state;
  const bool goes_on =
      tags.remembers(header.tag) &&
      (tags.is_lost(header.tag) || !before(header.operation, tags.next_number(header.tag)));
  if (!goes_on) return nullptr;
  parts_.passed.look_at(header.tag);  // unless the packet tells of an operation to come
  return &tags.activate(header.tag);
}

/// Handles an ABORT 8 that names this rank. If this rank has forgotten no tag, it has left, and the
/// peer has passed the operation: peers keep nothing for a rank that left. Then a bounded call of
/// this rank is late, and gets nothing from that peer.
void Router::take_told_forgotten(TagState& tag_state, const tarpon_header& header, Time now) {
  if (take_forgotten(tag_state, header.sender, now)) return;
  OpenOperation* const operation = tag_state.find_open(header.operation);
  if (operation == nullptr || !operation->state().bounded) {
    return parts_.counters.refuse_control(DropReason::unexpected);
  }
  operation->become_late(header.sender, now);
  operation->nothing_from(header.sender, now);
}

/// Marks the tag as lost: a peer knows numbers of it that this rank has forgotten. Returns false
/// when this rank has forgotten none.
bool Router::take_forgotten(TagState& tag_state, Rank from, Time now) {
  if (!parts_.tags.has_forgotten()) return false;
  if (tag_state.lost) return true;
  tag_state.lost = true;
  for (const TagState::Open& one : tag_state.open) {
    one.operation->on_abort(from, TARPON_ABORT_FORGOTTEN, bit(parts_.options.rank), now);
  }
  parts_.early.packets().forget(tag_state.tag);
  return true;
}

}  // namespace tarpon
