// Packets out: control first, then what was asked for again, then data by age, peer and credit.
#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "transport/endpoint/state.h"
#include "transport/integrity.h"

namespace tarpon {
namespace {

/// The last 1 % of a message, at least one slot, carries the tail mark.
std::uint32_t first_tail_slot(std::uint32_t slots) {
  return slots - std::max(1u, slots / 100);
}

std::uint8_t with_flows(std::uint8_t stage, const Stripes& stripes) {
  return static_cast<std::uint8_t>(stage | static_cast<unsigned>(std::countr_zero(stripes.flows))
                                               << TARPON_FLOWS_SHIFT);
}

/// The first request is answered over the flow of the slot, later ones over the others in turn: a
/// flow may be dead.
std::uint8_t repair_flow(const SendMessage& message, std::uint32_t slot) {
  const std::uint32_t flow = message.stripes.flow_of(slot) + message.requests - 1;
  return static_cast<std::uint8_t>(flow & (message.stripes.flows - 1));
}

}  // namespace

std::size_t Endpoint::poll_transmit(Time now, std::span<TxPacket> frames) {
  std::size_t used = state_->emit_control(now, frames);
  used += state_->emit_heartbeats(now, frames.subspan(used));
  used += state_->emit_retained(now, frames.subspan(used));
  used += state_->emit_data(now, frames.subspan(used));
  return used;
}

tarpon_header Endpoint::State::header_for(Time now, Rank peer, std::uint8_t type, std::uint32_t tag,
                                          std::uint32_t operation, std::uint8_t stage) {
  tarpon_header header{};
  header.magic = TARPON_MAGIC;
  header.version = TARPON_WIRE_VERSION;
  header.type = type;
  header.job = options.job;
  header.sender = options.rank;
  header.communicator = options.communicator;
  header.tag = tag;
  header.operation = operation;
  header.stage = stage;
  header.flags = static_cast<std::uint8_t>(options.integrity << TARPON_INTEGRITY_SHIFT);
  header.closed_below = static_cast<std::uint16_t>(tags.lowest_open(tag));
  header.incast_codec = static_cast<std::uint8_t>(inflow.advertised());
  header.sent_us = microseconds(now);
  header.echo_us = clocks.echo(peer, now);
  return header;
}

/// Of an operation's packets.
void Endpoint::State::mark_epoch(const OperationEpoch& epoch, tarpon_header& header) {
  header.epoch = epoch.number;
  header.incast_codec |= static_cast<std::uint8_t>(epoch.codec << TARPON_CODEC_SHIFT);
  header.stride = epoch.stride;
}

void Endpoint::State::write_header(const tarpon_header& common, const SlotFields& fields,
                                   TxPacket& frame) {
  // What differs from packet to packet goes straight into the frame: a copy of a header whose
  // fields were just written would wait for those stores, for each packet.
  const auto put = [&frame](std::size_t at, auto value) {
    std::memcpy(frame.header + at, &value, sizeof value);
  };
  std::memcpy(frame.header, &common, sizeof common);
  put(offsetof(tarpon_header, slot), fields.slot);
  put(offsetof(tarpon_header, flags), fields.flags);
  put(offsetof(tarpon_header, contributors), fields.contributors);
  put(offsetof(tarpon_header, length), static_cast<std::uint16_t>(frame.length));
  put(offsetof(tarpon_header, packet_number), packet_number++);
  if (options.integrity == TARPON_INTEGRITY_CRC32C) {
    tarpon_header whole;
    std::memcpy(&whole, frame.header, sizeof whole);
    put(offsetof(tarpon_header, check), packet_check(whole, {frame.payload, frame.length}));
  }
  ++counters.packets_out;
}

std::size_t Endpoint::State::emit_control(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    const std::optional<ControlDue> one = control.pop();
    if (!one) break;
    if (fill_control(now, *one, frames[used])) ++used;
  }
  return used;
}

bool Endpoint::State::fill_control(Time now, const ControlDue& due, TxPacket& frame) {
  tarpon_header header = header_for(now, due.peer, due.type, due.tag, due.operation, due.stage);
  header.signature = due.signature_hash;
  header.contributors = due.contributors;
  std::uint32_t slot = due.slot;
  frame.peer = due.peer;
  frame.flow = 0;
  frame.payload = frame.room;
  frame.lender = kNoLender;
  frame.length = 0;

  Channel* channel = tags.find(due.tag);
  Operation* operation = channel == nullptr ? nullptr : find_open(*channel, due.operation);
  const PastOperation* past = channel == nullptr ? nullptr : channel->find_past(due.operation);
  if (operation != nullptr) {
    mark_epoch(operation->epoch, header);
  } else if (past != nullptr) {
    mark_epoch(past->epoch, header);
  }
  if (due.type == TARPON_READY) {
    // Of a closed operation it goes to a peer that runs another one under its number.
    if (operation == nullptr && past == nullptr) return false;
    // ABORT tells of what was given up: one that never began has no signature that could differ.
    if (past != nullptr && past->aborted && past->reason != TARPON_ABORT_MISMATCH) return false;
    const Signature& signature = operation != nullptr ? operation->signature : past->signature;
    tarpon_ready ready{};
    std::copy(signature.begin(), signature.end(), ready.signature);
    for (std::uint32_t i = 0; operation != nullptr && i < operation->stage_count; ++i) {
      const ReceiveMessage* message = operation->stages[i].receive_from(due.peer);
      ready.grant[i] = message == nullptr ? 0 : message->granted;
    }
    if (operation != nullptr) {
      ready.age_us = static_cast<std::uint32_t>((operation->opened - operation->began) / 1us);
      std::copy(operation->terms.begin(), operation->terms.end(), ready.terms);
    }
    header.signature = signature_hash(signature);
    frame.length = sizeof ready;
    std::memcpy(frame.room, &ready, sizeof ready);
  } else if (due.type == TARPON_REPAIR) {
    if (operation == nullptr) return false;
    const Stage& stage = operation->stages[due.stage];
    ReceiveMessage* message = operation->stages[due.stage].receive_from(due.peer);
    if (stage.closed || message == nullptr || message->presence.complete()) return false;
    std::array<tarpon_range, kMaxRepairRanges> room;
    const std::span<tarpon_range> ranges(room.data(), max_entries());
    const std::uint32_t below = std::min(message->granted, message->repair_below);
    std::size_t count = message->lost(below, granter.repair(operation->slot_bytes), ranges);
    // Without proof of a loss one slot of each flow is asked for: its answer tells whether the rest
    // is lost or only late.
    if (count == 0) count = message->first_missing(below, ranges);
    message->asked_for = 0;
    for (std::size_t i = 0; i < count; ++i) message->asked_for += ranges[i].count;
    inflow.granted(
        now, std::uint64_t{message->asked_for} * (operation->slot_bytes + TARPON_HEADER_BYTES));
    granter.progressed(*operation, *message);
    slot = message->granted;
    frame.length = static_cast<std::uint32_t>(count * sizeof(tarpon_range));
    std::memcpy(frame.room, ranges.data(), frame.length);
    ++counters.repairs_requested;
  }
  if (due.type == TARPON_CREDIT) {
    ++counters.credits_out;
    if (operation != nullptr && due.stage == 0) operation->peers[due.peer].answer_queued = false;
  }
  mark_control(due, operation, header);
  note_control_out(due);
  write_header(header, {.slot = slot, .flags = header.flags, .contributors = header.contributors},
               frame);
  return true;
}

void Endpoint::State::fill_slot(const tarpon_header& common, const Operation& operation,
                                const SendMessage& message, SlotFields fields, TxPacket& frame) {
  const SlotView view = message.source->view(fields.slot);
  frame.peer = message.peer;
  frame.flow = fields.flow;
  frame.length = message.length(fields.slot, operation.slot_bytes);
  if (gathers && view.payload != nullptr) {
    frame.payload = view.payload;
    frame.lender = lender_of(operation.handle);
  } else {
    frame.payload = frame.room;
    frame.lender = kNoLender;
    message.source->write(fields.slot, {frame.room, frame.length});
  }
  fields.contributors = view.contributors;
  write_header(common, fields, frame);
  ++counters.data_out;
}

std::size_t Endpoint::State::emit_retained(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    RetainedDue* const one = control.front_retained();
    if (one == nullptr) break;
    Channel* channel = tags.find(one->tag);
    const KeptResult* kept = channel == nullptr ? nullptr : tags.find_kept(*channel, one->number);
    if (kept == nullptr || one->count == 0) {
      control.pop_retained();
      continue;
    }
    const std::size_t wire_bytes = kept->slot_bytes + TARPON_HEADER_BYTES;
    if (outflow.allowed(one->peer, now, wire_bytes, 1) == 0) {
      timer = std::min(timer, outflow.next(one->peer));
      break;
    }
    tarpon_range& range = one->ranges[one->count - 1];
    const std::pmr::vector<std::byte>& bytes = kept->data->bytes;
    const std::size_t offset = std::size_t{range.first} * kept->slot_bytes;
    TxPacket& frame = frames[used];
    tarpon_header header =
        header_for(now, one->peer, TARPON_DATA, one->tag, one->number, kept->data->stage);
    header.signature = kept->signature_hash;
    mark_epoch(kept->epoch, header);
    const SlotFields fields{
        .slot = range.first,
        .flags = static_cast<std::uint8_t>(header.flags | TARPON_FLAG_REPAIR |
                                           (kept->nonfinite ? TARPON_FLAG_NONFINITE : 0)),
        .contributors = kept->data->contributors[range.first]};
    frame.peer = one->peer;
    frame.flow = 0;
    frame.length =
        static_cast<std::uint32_t>(std::min<std::size_t>(kept->slot_bytes, bytes.size() - offset));
    frame.payload = frame.room;  // copied: the retained bytes may go before the port has sent them
    frame.lender = kNoLender;
    std::memcpy(frame.room, bytes.data() + offset, frame.length);
    write_header(header, fields, frame);
    outflow.sent(one->peer, now, wire_bytes);
    ++counters.data_out;
    ++counters.repaired_slots;
    ++used;
    ++range.first;
    if (--range.count == 0) --one->count;
  }
  return used;
}

std::size_t Endpoint::State::emit_data(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  for (Operation* operation : open_operations) {
    // Earlier stages first: what others add up with comes before what they only store, or those
    // whose contributions are late hold up all the rest.
    for (std::uint8_t stage = 0; stage < operation->stage_count; ++stage) {
      if (held_back(*operation, stage)) break;
      std::uint32_t peers = 0;
      for (SendMessage& message : operation->stages[stage].sends) {
        if (used == frames.size()) return used;
        if (message.done) continue;
        const std::size_t before = used;
        used += emit_repairs(now, *operation, stage, message,
                             paced(now, *operation, message, frames.subspan(used)));
        used += emit_message(now, *operation, stage, message,
                             paced(now, *operation, message, frames.subspan(used)));
        const std::uint32_t ready = std::min(operation->stages[stage].ready, message.slots);
        const bool more = message.repair_count > 0 || message.next < std::min(ready, message.grant);
        if (more && used < frames.size()) timer = std::min(timer, outflow.next(message.peer));
        if (used > before && ++peers == outflow.peers_at_once()) break;
      }
    }
  }
  return used;
}

/// As many of `frames` as may leave for the message's peer now.
std::span<TxPacket> Endpoint::State::paced(Time now, const Operation& operation,
                                           const SendMessage& message,
                                           std::span<TxPacket> frames) const {
  const std::size_t bytes = operation.slot_bytes + TARPON_HEADER_BYTES;
  const std::size_t count = outflow.allowed(message.peer, now, bytes, frames.size());
  return frames.first(count);
}

std::size_t Endpoint::State::emit_repairs(Time now, Operation& operation, std::uint8_t stage,
                                          SendMessage& message, std::span<TxPacket> frames) {
  std::size_t used = 0;
  if (message.repair_count == 0) return used;
  tarpon_header header =
      header_for(now, message.peer, TARPON_DATA, operation.tag, operation.number, stage);
  header.signature = operation.signature_hash;
  mark_epoch(operation.epoch, header);
  header.stage_time = operation.stage_time;
  header.flags |= nonfinite_flag(operation, TARPON_DATA, stage);
  header.stage = with_flows(stage, message.stripes);
  const auto flags = static_cast<std::uint8_t>(header.flags | TARPON_FLAG_REPAIR);
  while (used < frames.size() && message.repair_count > 0) {
    tarpon_range& range = message.repairs[message.repair_count - 1];
    fill_slot(header, operation, message,
              {.slot = range.first, .flags = flags, .flow = repair_flow(message, range.first)},
              frames[used]);
    ++counters.repaired_slots;
    ++used;
    ++range.first;
    if (--range.count == 0) --message.repair_count;
  }
  outflow.sent(message.peer, now, used * (operation.slot_bytes + TARPON_HEADER_BYTES));
  return used;
}

/// Packets at the end of `take` that are no whole train. Trains end where stripes do.
std::uint32_t Endpoint::State::train_rest(const SendMessage& message, std::uint32_t take) const {
  if (message.stripes.flows == 1) return take % burst;
  const std::uint32_t rest = (message.next + take) % message.stripes.length;
  return rest < take ? rest : 0;
}

std::size_t Endpoint::State::emit_message(Time now, Operation& operation, std::uint8_t stage,
                                          SendMessage& message, std::span<TxPacket> frames) {
  const std::uint32_t limit =
      std::min({operation.stages[stage].ready, message.grant, message.slots});
  if (limit <= message.next) return 0;
  std::uint32_t take = std::min(limit - message.next, static_cast<std::uint32_t>(frames.size()));
  // Whole trains: what would start a train that the frames cut short waits for the next poll.
  if (take > burst && message.next + take < limit) take -= train_rest(message, take);
  tarpon_header header =
      header_for(now, message.peer, TARPON_DATA, operation.tag, operation.number, stage);
  header.signature = operation.signature_hash;
  mark_epoch(operation.epoch, header);
  header.stage_time = operation.stage_time;
  header.flags |= nonfinite_flag(operation, TARPON_DATA, stage);
  header.stage = with_flows(stage, message.stripes);
  const auto marked = static_cast<std::uint8_t>(header.flags | TARPON_FLAG_TAIL);
  const std::uint32_t tail = first_tail_slot(message.slots);
  for (std::uint32_t i = 0; i < take; ++i) {
    const std::uint32_t slot = message.next++;
    fill_slot(header, operation, message,
              {.slot = slot,
               .flags = slot < tail ? header.flags : marked,
               .flow = static_cast<std::uint8_t>(message.stripes.flow_of(slot))},
              frames[i]);
  }
  outflow.sent(message.peer, now, take * (operation.slot_bytes + TARPON_HEADER_BYTES));
  return take;
}

}  // namespace tarpon
