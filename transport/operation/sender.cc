#include "transport/operation/sender.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

namespace tarpon {
namespace {

std::uint8_t with_flows(std::uint8_t stage, const Stripes& stripes) {
  return static_cast<std::uint8_t>(stage | static_cast<unsigned>(std::countr_zero(stripes.flows))
                                               << TARPON_FLOWS_SHIFT);
}

}  // namespace

Sender::Sender(const EndpointOptions& options, const PortCapabilities& port, PacketWriter& writer,
               EndpointCounters& counters, const Participants& participants, Alarm& alarm)
    : gathers_(port.gathers),
      train_(std::max(1u, port.burst)),
      writer_(writer),
      counters_(counters),
      participants_(participants),
      alarm_(alarm),
      outflow_(options),
      flow_choice_(options.flows, port.flows) {}

void Sender::choose_flows(Operation& operation, const OperationSpec& spec) {
  const std::uint64_t least = flow_choice_.tries() ? kLargeMessage : 1;
  const auto is_large = [least](const SendSpec& send) { return send.bytes >= least; };
  const bool large = std::any_of(spec.stages.begin(), spec.stages.end(), [&](const StageSpec& one) {
    return std::any_of(one.sends.begin(), one.sends.end(), is_large);
  });
  const FlowChoice::Next next = large ? flow_choice_.next() : FlowChoice::Next{};
  operation.flows = next.flows;
  operation.flows_measured = next.measured;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    const std::vector<SendSpec>& sends = spec.stages[i].sends;
    for (std::size_t j = 0; j < sends.size(); ++j) {
      const bool spread = is_large(sends[j]) && !operation.stages[i].multicast.on;
      operation.stages[i].sends[j].set_stripes(
          {stripe_slots(operation.slot_bytes), spread ? next.flows : 1});
    }
  }
}

void Sender::measure_flows(const Operation& operation, bool failed) {
  if (!operation.flows_measured) return;
  std::uint64_t slots = 0;
  Time last{};
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    const Stage& stage = operation.stages[i];
    last = std::max(last, stage.last_arrival);
    for (const ReceiveMessage& message : stage.receives) {
      slots += message.received();
    }
  }
  const bool timed = operation.clock.has_started() && last > operation.clock.started();
  double rate = 0;
  if (timed && !failed) {
    rate = static_cast<double>(slots * operation.slot_bytes) /
           std::chrono::duration<double>(last - operation.clock.started()).count();
  }
  flow_choice_.ended(operation.flows, rate);
}

std::size_t Sender::send(Time now, std::span<Operation* const> operations,
                         std::span<TxPacket> frames) {
  std::size_t used = 0;
  for (Operation* operation : operations) {
    // Earlier stages first: data that peers add up comes before data that they only store.
    // Otherwise ranks whose contributions are late hold up all others.
    for (std::uint8_t number = 0; number < operation->stage_count; ++number) {
      if (holds_back(*operation, number)) break;
      used += send_stage(now, *operation, number, frames.subspan(used));
      if (used == frames.size()) return used;
    }
  }
  return used;
}

std::size_t Sender::send_stage(Time now, Operation& operation, std::uint8_t number,
                               std::span<TxPacket> frames) {
  Stage& stage = operation.stages[number];
  std::size_t used = 0;
  std::uint32_t peers = 0;
  for (SendMessage& message : stage.sends) {
    if (used == frames.size()) return used;
    if (message.is_done()) continue;
    const std::size_t before = used;
    used += send_repairs(now, operation, number, message,
                         paced(now, operation, message, frames.subspan(used)));
    used += send_new(now, operation, number, message,
                     paced(now, operation, message, frames.subspan(used)));
    const bool more =
        message.has_repairs() || message.next() < unicast_limit(stage, message, participants_);
    if (more && used < frames.size()) alarm_.no_later_than(outflow_.next(message.peer()));
    if (used > before && ++peers == outflow_.peers_at_once()) break;
  }
  // Behind the repairs: peers wait for those.
  if (stage.multicast.on) {
    used += send_to_all(now, operation, number, frames.subspan(used));
  }
  return used;
}

/// As many of `frames` as may leave for the message's peer now.
std::span<TxPacket> Sender::paced(Time now, const Operation& operation, const SendMessage& message,
                                  std::span<TxPacket> frames) const {
  const std::size_t bytes = operation.slot_bytes + TARPON_HEADER_BYTES;
  const std::size_t count = outflow_.allowed(message.peer(), now, bytes, frames.size());
  return frames.first(count);
}

/// Returns the header fields that packets of `message` to `peer` that leave now have in common.
tarpon_header Sender::header_of(Time now, const Operation& operation, std::uint8_t stage,
                                const SendMessage& message, Rank peer) const {
  tarpon_header header =
      writer_.header(now, peer, TARPON_DATA, operation.tag, operation.number, stage);
  header.signature = operation.signature_hash;
  PacketWriter::mark_epoch(operation.epoch, header);
  header.stage_time = operation.stage_time;
  // DATA of the first stage carries the marks of the ranks in it alone: see fill().
  if (stage != 0 && operation.marks.any()) header.flags |= TARPON_FLAG_NONFINITE;
  header.stage = with_flows(stage, message.stripes());
  return header;
}

std::size_t Sender::send_repairs(Time now, Operation& operation, std::uint8_t number,
                                 SendMessage& message, std::span<TxPacket> frames) {
  std::size_t used = 0;
  if (!message.has_repairs()) return used;
  Stage& stage = operation.stages[number];
  const tarpon_header header = header_of(now, operation, number, message, message.peer());
  tarpon_header to_all = header;
  to_all.echo_us = 0;
  const auto flags = static_cast<std::uint8_t>(header.flags | TARPON_FLAG_REPAIR);
  while (used < frames.size() && message.has_repairs()) {
    const tarpon_range range = message.next_repair();
    const auto room = static_cast<std::uint32_t>(frames.size() - used);
    std::uint32_t count = std::min({range.count, room, message.stripes().rest(range.first)});
    std::optional<Rank> to = message.peer();
    if (stage.multicast.on) {
      count = 1;
      to = answer_to(stage, message.peer(), range.first, now);
    }
    if (to) {
      fill(*to == kAllRanks ? to_all : header, operation, message,
           {.first = range.first,
            .peer = *to,
            .flags = flags,
            .flow = message.repair_flow(range.first)},
           frames.subspan(used, count));
      counters_.repaired_slots += count;
      used += count;
    }
    message.repaired(count);
  }
  outflow_.sent(message.peer(), now, used * (operation.slot_bytes + TARPON_HEADER_BYTES));
  return used;
}

/// Number of packets at the end of `take` that do not fill a train. Trains end where stripes do.
std::uint32_t Sender::train_rest(const SendMessage& message, const SlotRange& range,
                                 std::uint32_t take) const {
  if (message.stripes().flows == 1) return take % train_;
  const std::uint32_t rest = (range.first + take) % message.stripes().length;
  return rest < take ? rest : 0;
}

/// Sends slots of `message` that have not gone out yet.
std::size_t Sender::send_new(Time now, const Operation& operation, std::uint8_t stage,
                             SendMessage& message, std::span<TxPacket> frames) {
  const std::uint32_t limit = unicast_limit(operation.stages[stage], message, participants_);
  if (limit <= message.next()) return 0;
  const std::uint32_t sent =
      send_slots(header_of(now, operation, stage, message, message.peer()), operation, message,
                 {.first = message.next(), .end = limit, .peer = message.peer()}, frames);
  message.set_next(message.next() + sent);
  outflow_.sent(message.peer(), now,
                std::size_t{sent} * (operation.slot_bytes + TARPON_HEADER_BYTES));
  return sent;
}

/// Sends slots to all peers at once.
std::size_t Sender::send_to_all(Time now, Operation& operation, std::uint8_t number,
                                std::span<TxPacket> frames) {
  Stage& stage = operation.stages[number];
  const std::uint32_t limit = multicast_limit(operation, stage, participants_, now, alarm_);
  if (limit == stage.multicast.next || frames.empty()) return 0;
  std::uint64_t peers = 0;  // in step
  for (const SendMessage& message : stage.sends) {
    if (!in_step(stage, message, participants_)) continue;
    peers |= bit(message.peer());
    frames = paced(now, operation, message, frames);
    if (frames.empty()) {
      alarm_.no_later_than(outflow_.next(message.peer()));
      return 0;
    }
  }
  const SendMessage& any = stage.sends.front();
  const std::uint32_t sent =
      send_slots(header_of(now, operation, number, any, kAllRanks), operation, any,
                 {.first = stage.multicast.next, .end = limit, .peer = kAllRanks}, frames);
  outflow_.sent_to_all(peers, now,
                       std::size_t{sent} * (operation.slot_bytes + TARPON_HEADER_BYTES));
  note_multicast(stage, participants_, sent);
  return sent;
}

/// Sends a range of slots, as far as the frames suffice. Returns the number of slots.
std::uint32_t Sender::send_slots(const tarpon_header& header, const Operation& operation,
                                 const SendMessage& message, const SlotRange& range,
                                 std::span<TxPacket> frames) {
  std::uint32_t take = std::min(range.end - range.first, static_cast<std::uint32_t>(frames.size()));
  // Whole trains only: packets of a train that the frames would cut short wait for the next poll.
  if (take > train_ && range.first + take < range.end) take -= train_rest(message, range, take);
  const auto marked = static_cast<std::uint8_t>(header.flags | TARPON_FLAG_TAIL);
  const std::uint32_t tail = message.first_tail_slot();
  for (std::uint32_t used = 0; used < take;) {
    const std::uint32_t slot = range.first + used;
    std::uint32_t count = std::min(take - used, message.stripes().rest(slot));
    if (slot < tail) count = std::min(count, tail - slot);
    fill(header, operation, message,
         {.first = slot,
          .peer = range.peer,
          .flags = slot < tail ? header.flags : marked,
          .flow = static_cast<std::uint8_t>(message.stripes().flow_of(slot))},
         frames.subspan(used, count));
    used += count;
  }
  return take;
}

/// Fills `frames` with the slots from the stretch's first one on.
void Sender::fill(const tarpon_header& header, const Operation& operation,
                  const SendMessage& message, const Stretch& stretch, std::span<TxPacket> frames) {
  std::uint32_t slot = stretch.first;
  for (TxPacket& frame : frames) {
    frame.peer = stretch.peer;
    frame.flow = stretch.flow;
    frame.length = message.lengths().of(slot++);
  }
  slot = stretch.first;
  while (!frames.empty()) {
    const auto most = static_cast<std::uint32_t>(frames.size());
    const OutgoingRun run = message.source().lend(slot, most);
    const std::span<TxPacket> filled = frames.first(run.count);
    place(operation, run, filled);
    const bool within = (operation.marks.ranks & run.contributors) != 0;
    const bool marked = tarpon_stage(&header) == 0 && within;
    const auto flags =
        static_cast<std::uint8_t>(stretch.flags | (marked ? TARPON_FLAG_NONFINITE : 0));
    writer_.write(header, {slot, flags, run.contributors}, filled);
    counters_.data_out += run.count;
    slot += run.count;
    frames = frames.subspan(run.count);
  }
}

/// Lends the payload of `run` to the port, or copies it into the frames.
void Sender::place(const Operation& operation, const OutgoingRun& run,
                   std::span<TxPacket> frames) const {
  const std::byte* payload = run.payload;
  for (TxPacket& frame : frames) {
    if (gathers_) {
      frame.payload = payload;
      frame.lender = lender_of(operation.handle);
    } else {
      frame.payload = frame.room;
      frame.lender = kNoLender;
      std::memcpy(frame.room, payload, frame.length);
    }
    payload += run.stride;
  }
}

std::size_t Sender::send_retained(Time now, ControlQueue& due, TagHistory& tags,
                                  std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    RetainedDue* const one = due.front_retained();
    if (one == nullptr) break;
    TagState* tag_state = tags.find(one->tag);
    const KeptResult* kept =
        tag_state == nullptr ? nullptr : tags.find_kept(*tag_state, one->number);
    if (kept == nullptr || one->count == 0) {
      due.pop_retained();
      continue;
    }
    const std::size_t wire_bytes = kept->slot_bytes + TARPON_HEADER_BYTES;
    if (outflow_.allowed(one->peer, now, wire_bytes, 1) == 0) {
      alarm_.no_later_than(outflow_.next(one->peer));
      break;
    }
    tarpon_range& range = one->ranges[one->count - 1];
    const std::pmr::vector<std::byte>& bytes = kept->data->bytes;
    const std::size_t offset = std::size_t{range.first} * kept->slot_bytes;
    TxPacket& frame = frames[used];
    tarpon_header header =
        writer_.header(now, one->peer, TARPON_DATA, one->tag, one->number, kept->data->stage);
    header.signature = kept->signature_hash;
    PacketWriter::mark_epoch(kept->epoch, header);
    const RunFields fields{
        .slot = range.first,
        .flags = static_cast<std::uint8_t>(header.flags | TARPON_FLAG_REPAIR |
                                           (kept->marked ? TARPON_FLAG_NONFINITE : 0)),
        .contributors = kept->data->contributors[range.first]};
    frame.peer = one->peer;
    frame.flow = 0;
    frame.length =
        static_cast<std::uint32_t>(std::min<std::size_t>(kept->slot_bytes, bytes.size() - offset));
    frame.payload = frame.room;  // copied: the bytes may be freed before the port has sent them
    frame.lender = kNoLender;
    std::memcpy(frame.room, bytes.data() + offset, frame.length);
    writer_.write(header, fields, {&frame, 1});
    outflow_.sent(one->peer, now, wire_bytes);
    ++counters_.data_out;
    ++counters_.repaired_slots;
    ++used;
    ++range.first;
    if (--range.count == 0) --one->count;
  }
  return used;
}

}  // namespace tarpon
