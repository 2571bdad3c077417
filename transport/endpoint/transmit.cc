// Packets out: control first, then what was asked for again, then data by age, peer and credit.
#include <algorithm>
#include <cstring>

#include "transport/endpoint/integrity.h"
#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

std::uint32_t microseconds(Time now) {
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count());
}

/// The last 1 % of a message, at least one slot, carries the tail mark.
std::uint32_t first_tail_slot(std::uint32_t slots) {
  return slots - std::max(1u, slots / 100);
}

}  // namespace

std::size_t Endpoint::poll_transmit(Time now, std::span<TxPacket> frames) {
  std::size_t used = state_->emit_control(now, frames);
  used += state_->emit_retained(now, frames.subspan(used));
  used += state_->emit_data(now, frames.subspan(used));
  return used;
}

tarpon_header Endpoint::State::header_for(Time now, std::uint8_t type, std::uint32_t tag,
                                          std::uint32_t operation, std::uint8_t stage) const {
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
  for (const auto& channel : channels) {
    if (channel->tag != tag) continue;
    header.closed_below = static_cast<std::uint16_t>(channel->lowest_open());
    break;
  }
  header.sent_us = microseconds(now);
  return header;
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
  while (used < frames.size() && !control.empty()) {
    const ControlDue due = control.front();
    control.pop_front();
    if (fill_control(now, due, frames[used])) ++used;
  }
  return used;
}

bool Endpoint::State::fill_control(Time now, const ControlDue& due, TxPacket& frame) {
  tarpon_header header = header_for(now, due.type, due.tag, due.operation, due.stage);
  header.signature = due.signature_hash;
  std::uint32_t slot = due.slot;
  frame.peer = due.peer;
  frame.payload = frame.room;
  frame.length = 0;

  Channel* channel = find_channel(due.tag);
  Operation* operation = channel == nullptr ? nullptr : find_open(*channel, due.operation);
  if (due.type == TARPON_READY) {
    // Of a closed operation it goes to a peer that runs another one under its number.
    const Channel::Past* past = channel == nullptr ? nullptr : channel->find_past(due.operation);
    if (operation == nullptr && past == nullptr) return false;
    const Signature& signature = operation != nullptr ? operation->signature : past->signature;
    tarpon_ready ready{};
    std::copy(signature.begin(), signature.end(), ready.signature);
    for (std::uint32_t i = 0; operation != nullptr && i < operation->stage_count; ++i) {
      const ReceiveMessage* message = operation->stages[i].receive_from(due.peer);
      ready.grant[i] = message == nullptr ? 0 : message->granted;
    }
    header.signature = signature_hash(signature);
    frame.length = sizeof ready;
    std::memcpy(frame.room, &ready, sizeof ready);
  } else if (due.type == TARPON_REPAIR) {
    if (operation == nullptr) return false;
    const Stage& stage = operation->stages[due.stage];
    const ReceiveMessage* message = operation->stages[due.stage].receive_from(due.peer);
    if (stage.closed || message == nullptr || message->presence.complete()) return false;
    std::array<tarpon_range, kMaxRepairRanges> ranges;
    const std::uint32_t below = std::min(message->granted, message->repair_below);
    std::size_t count = message->presence.missing(std::min(below, message->lost_below),
                                                  credit_window(operation->slot_bytes), ranges);
    // Without proof of a loss one slot is asked for: its answer tells whether the rest is lost or
    // only late.
    if (count == 0) count = message->presence.missing(below, 1, ranges);
    slot = message->granted;
    frame.length = static_cast<std::uint32_t>(count * sizeof(tarpon_range));
    std::memcpy(frame.room, ranges.data(), frame.length);
    ++counters.repairs_requested;
  }
  write_header(header, {.slot = slot, .flags = header.flags}, frame);
  return true;
}

void Endpoint::State::fill_slot(const tarpon_header& common, const Operation& operation,
                                const SendMessage& message, SlotFields fields, TxPacket& frame) {
  const SlotView view = message.source->view(fields.slot);
  frame.peer = message.peer;
  frame.length = message.length(fields.slot, operation.slot_bytes);
  if (gathers && view.payload != nullptr) {
    frame.payload = view.payload;
  } else {
    frame.payload = frame.room;
    message.source->write(fields.slot, {frame.room, frame.length});
  }
  fields.contributors = view.contributors;
  write_header(common, fields, frame);
  ++counters.data_out;
}

std::size_t Endpoint::State::emit_retained(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size() && !retained_due.empty()) {
    RetainedDue& due = retained_due.front();
    Channel* channel = find_channel(due.tag);
    const Channel::Kept* kept = channel == nullptr ? nullptr : find_kept(*channel, due.number);
    if (kept == nullptr || due.count == 0) {
      retained_due.pop_front();
      continue;
    }
    tarpon_range& range = due.ranges[due.count - 1];
    const std::vector<std::byte>& bytes = kept->data->bytes;
    const std::size_t offset = std::size_t{range.first} * kept->slot_bytes;
    TxPacket& frame = frames[used];
    tarpon_header header = header_for(now, TARPON_DATA, due.tag, due.number, kept->data->stage);
    header.signature = kept->signature_hash;
    const SlotFields fields{.slot = range.first,
                            .flags = static_cast<std::uint8_t>(header.flags | TARPON_FLAG_REPAIR),
                            .contributors = kept->data->contributors[range.first]};
    frame.peer = due.peer;
    frame.length =
        static_cast<std::uint32_t>(std::min<std::size_t>(kept->slot_bytes, bytes.size() - offset));
    frame.payload = frame.room;  // copied: the retained bytes may go before the port has sent them
    std::memcpy(frame.room, bytes.data() + offset, frame.length);
    write_header(header, fields, frame);
    ++counters.data_out;
    ++counters.repaired_slots;
    ++used;
    ++range.first;
    if (--range.count == 0) --due.count;
  }
  return used;
}

std::size_t Endpoint::State::emit_data(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  for (Operation* operation : open_operations) {
    // Later stages first: their slots were just completed and are still in the cache.
    for (std::uint32_t i = operation->stage_count; i > 0; --i) {
      const auto stage = static_cast<std::uint8_t>(i - 1);
      for (SendMessage& message : operation->stages[stage].sends) {
        if (used == frames.size()) return used;
        if (message.done) continue;
        used += emit_repairs(now, *operation, stage, message, frames.subspan(used));
        used += emit_message(now, *operation, stage, message, frames.subspan(used));
      }
    }
  }
  return used;
}

std::size_t Endpoint::State::emit_repairs(Time now, Operation& operation, std::uint8_t stage,
                                          SendMessage& message, std::span<TxPacket> frames) {
  std::size_t used = 0;
  if (message.repair_count == 0) return used;
  tarpon_header header = header_for(now, TARPON_DATA, operation.tag, operation.number, stage);
  header.signature = operation.signature_hash;
  const auto flags = static_cast<std::uint8_t>(header.flags | TARPON_FLAG_REPAIR);
  while (used < frames.size() && message.repair_count > 0) {
    tarpon_range& range = message.repairs[message.repair_count - 1];
    fill_slot(header, operation, message, {.slot = range.first, .flags = flags}, frames[used]);
    ++counters.repaired_slots;
    ++used;
    ++range.first;
    if (--range.count == 0) --message.repair_count;
  }
  return used;
}

std::size_t Endpoint::State::emit_message(Time now, Operation& operation, std::uint8_t stage,
                                          SendMessage& message, std::span<TxPacket> frames) {
  const std::uint32_t limit =
      std::min({operation.stages[stage].ready, message.grant, message.slots});
  if (limit <= message.next) return 0;
  std::uint32_t take = std::min(limit - message.next, static_cast<std::uint32_t>(frames.size()));
  // Whole trains: what would start a train that the frames cut short waits for the next poll.
  if (take > burst && message.next + take < limit) take -= take % burst;
  tarpon_header header = header_for(now, TARPON_DATA, operation.tag, operation.number, stage);
  header.signature = operation.signature_hash;
  const auto marked = static_cast<std::uint8_t>(header.flags | TARPON_FLAG_TAIL);
  const std::uint32_t tail = first_tail_slot(message.slots);
  for (std::uint32_t i = 0; i < take; ++i) {
    const std::uint32_t slot = message.next++;
    fill_slot(header, operation, message,
              {.slot = slot, .flags = slot < tail ? header.flags : marked}, frames[i]);
  }
  return take;
}

}  // namespace tarpon
