#include "transport/operation/receiver.h"

#include <algorithm>
#include <array>

#include "transport/rate/flow_choice.h"

namespace tarpon {

Receiver::Receiver(const Parts& parts)
    : options_(parts.options),
      granter_(parts.granter),
      inflow_(parts.granter.inflow()),
      control_(parts.control),
      journal_(parts.journal),
      alarm_(parts.alarm),
      counters_(parts.counters),
      flows_of_(parts.options.world_size, 1) {}

void Receiver::give_up(Operation& operation, Stage& stage, ReceiveMessage& message, Time now) {
  message.end();
  message_ended(operation, stage, message, now);
}

void Receiver::fetch(Stage& stage, const ReceiveMessage& spare) {
  // What a closed stage lacked may still come.
  for (const ReceiveMessage& message : stage.receives) {
    if (!stage.closed || !message.is_expected()) continue;
    ++stage.open_receives;
    granter_.expects();
  }
  stage.receive_of[spare.peer()] = static_cast<std::uint16_t>(stage.receives.size());
  ReceiveMessage& message = stage.receives.emplace_back(spare);
  message.allow_repair(kAllSlots);
  message.credit().set_granted(message.slots());
  granter_.expects();
  ++stage.open_receives;
  ++stage.tails_missing;
  stage.closed = false;
}

void Receiver::release(Operation& operation, Time now) {
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    const Stage& stage = operation.stages[i];
    if (!stage.closed) granter_.ended(stage.open_receives);
  }
  granter_.closed(now);
  alarm_.no_later_than(granter_.next(now));
}

void Receiver::receive(Operation& operation, tarpon_header header,
                       std::span<const RxPacket> packets, Time now) {
  const std::uint32_t number = tarpon_stage(&header);
  Stage* const stage = number < operation.stage_count ? &operation.stages[number] : nullptr;
  ReceiveMessage* const message = stage == nullptr ? nullptr : stage->receive_from(header.sender);
  if (message == nullptr) {
    counters_[DropReason::message] += packets.size();
    return;
  }
  while (!packets.empty()) {
    std::size_t count = 1;
    if (!refused(operation, *stage, *message, header, packets.front())) {
      if (!message->arrivals().knows_stripes()) learn_flows(operation, *message, header);
      count = run_length(*message, header, packets);
      take(operation, *stage, *message, header, packets.first(count), now);
    }
    header.slot += static_cast<std::uint32_t>(count);
    packets = packets.subspan(count);
  }
}

/// Whether the slot is of no use. Counts it then.
bool Receiver::refused(Operation& operation, const Stage& stage, const ReceiveMessage& message,
                       const tarpon_header& header, const RxPacket& packet) {
  if (header.slot >= message.slots() ||
      packet.length - TARPON_HEADER_BYTES != message.lengths().of(header.slot)) {
    ++counters_[DropReason::message];
    return true;
  }
  if (message.arrivals().presence().contains(header.slot)) {
    // It may be one of the slots that were given up, and come too late.
    ++counters_[message.given_up() > 0 ? DropReason::closed : DropReason::duplicate];
    if (message.given_up() > 0) ++operation.late_packets;
    return true;
  }
  if (!stage.closed) return false;
  ++counters_[DropReason::closed];
  ++operation.late_packets;
  return true;
}

/// Returns how many of `packets` are taken at once: those that continue their flow in order. The
/// slot that completes a message is taken alone. REQUIRES: the first one is not refused.
std::size_t Receiver::run_length(const ReceiveMessage& message, const tarpon_header& header,
                                 std::span<const RxPacket> packets) {
  const std::uint32_t slot = header.slot;
  // If the first slot is the end of its flow, no later one of the flow is here.
  const bool in_order = slot == message.arrivals().end_of_flow(slot);
  if (!in_order || (header.flags & TARPON_FLAG_REPAIR) != 0) return 1;
  const std::size_t most =
      std::min<std::size_t>({packets.size(), message.arrivals().stripes().rest(slot),
                             message.slots() - 1 - message.arrivals().presence().count()});
  std::uint32_t count = 1;
  while (count < most && slot + count < message.slots() &&
         packets[count].length - TARPON_HEADER_BYTES == message.lengths().of(slot + count)) {
    ++count;
  }
  return count;
}

/// Takes slots that are not here yet: one, or several that run_length() has put together.
void Receiver::take(Operation& operation, Stage& stage, ReceiveMessage& message,
                    const tarpon_header& header, std::span<const RxPacket> packets, Time now) {
  const auto count = static_cast<std::uint32_t>(packets.size());
  count_arrivals(operation, message, header, packets);
  message.arrivals().insert(header.slot, count);
  counters_.data_in += count;
  message.sink().deliver({.from = message.peer(),
                          .first = header.slot,
                          .packets = packets,
                          .contributors = header.contributors});
  if (message.delivered()) delivered_one(operation, stage, message, now);
  note_arrival(operation, stage, message, header, now);
  granter_.progressed(operation, message, count);
}

/// Learns from the first DATA of a message how its sender spreads it over flows.
void Receiver::learn_flows(const Operation& operation, ReceiveMessage& message,
                           const tarpon_header& header) {
  const std::uint32_t flows = tarpon_flows(&header);
  message.arrivals().set_stripes({stripe_slots(operation.slot_bytes), flows});
  const std::uint64_t bytes = std::uint64_t{message.slots()} * operation.slot_bytes;
  if (bytes < kLargeMessage || flows_of_[message.peer()] == flows) return;
  flows_of_[message.peer()] = static_cast<std::uint8_t>(flows);
  inflow_.flows_changed();
}

/// Tells Inflow of packets. Call it before their slots are marked present.
void Receiver::count_arrivals(const Operation& operation, const ReceiveMessage& message,
                              const tarpon_header& header, std::span<const RxPacket> packets) {
  const std::uint32_t unasked = operation.unasked;
  std::uint32_t slot = header.slot;
  for (const RxPacket& packet : packets) inflow_.arrived(packet.length, slot++ < unasked);
  const Arrivals& arrivals = message.arrivals();
  if (const std::uint32_t end = arrivals.end_of_flow(header.slot); header.slot > end) {
    const std::uint32_t early = arrivals.overtaken_by(header.slot, unasked);
    inflow_.overtaken(arrivals.overtaken_by(header.slot, header.slot) - early, early);
  } else if (header.slot < end && (header.flags & TARPON_FLAG_REPAIR) == 0) {
    inflow_.found(header.slot < unasked);
  }
}

void Receiver::note_arrival(Operation& operation, Stage& stage, ReceiveMessage& message,
                            const tarpon_header& header, Time now) {
  stage.last_arrival = now;
  if ((header.flags & TARPON_FLAG_TAIL) != 0 && message.note_tail()) {
    --stage.tails_missing;
    if (stage.tails_missing == 0 && stage.early > Duration::zero()) alarm_.no_later_than(now);
  }
  message.note_arrival(header.slot, (header.flags & TARPON_FLAG_REPAIR) != 0, now);
  if (message.arrivals().gap_since() == now) {
    alarm_.no_later_than(message.due(delays(operation)));
  }
}

void Receiver::delivered_one(Operation& operation, Stage& stage, ReceiveMessage& message,
                             Time now) {
  if (stage.acknowledge) confirm(operation, stage, message);
  // A message that was given up was counted then.
  if (message.end()) message_ended(operation, stage, message, now);
}

void Receiver::message_ended(Operation& operation, Stage& stage, ReceiveMessage& message,
                             Time now) {
  if (message.note_tail()) --stage.tails_missing;
  granter_.ended(1);
  if (--stage.open_receives != 0 || stage.awaits_caller) return;
  const bool lost = std::any_of(stage.receives.begin(), stage.receives.end(),
                                [](const ReceiveMessage& one) { return one.given_up() > 0; });
  close_stage(operation, stage, lost ? Closing::early : Closing::given_up, now);
}

void Receiver::close_stage(Operation& operation, Stage& stage, Closing closing, Time now) {
  bool complete = true;
  for (const ReceiveMessage& message : stage.receives) {
    complete &= message.delivered() && message.given_up() == 0;
  }
  granter_.ended(stage.open_receives);
  stage.open_receives = 0;
  stage.closed = true;
  if (!complete && needs_no_more(operation, stage)) {
    for (const ReceiveMessage& message : stage.receives) confirm(operation, stage, message);
  }
  Event event;
  event.kind = Event::Kind::stage_closed;
  event.stage = static_cast<std::uint8_t>(&stage - operation.stages.data());
  event.closing = complete ? Closing::complete : closing;
  if (operation.clock.has_started()) event.elapsed = now - operation.clock.started();
  journal_.tell(operation, event, now);
  alarm_.no_later_than(now);  // what is due next has changed
}

void Receiver::give_credit(std::span<Operation* const> operations, Time now) {
  for (const Grant& grant : granter_.give(now, operations)) {
    const ReceiveMessage& message = *grant.message;
    const std::uint32_t granted = message.credit().granted();
    if (granted == message.slots()) {
      journal_.note(RecordKind::credit, *grant.operation, message.peer(), now, granted,
                    grant.stage);
    }
    queue_credit(*grant.operation, grant.stage, message.peer(), granted);
    alarm_.no_later_than(message.due(delays(*grant.operation)));
  }
  alarm_.no_later_than(granter_.next(now));
}

void Receiver::confirm_again(Operation& operation, Rank peer) {
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    const Stage& stage = operation.stages[i];
    const ReceiveMessage* const message = stage.receive_from(peer);
    if (!stage.acknowledge || message == nullptr) continue;
    if (message->delivered() || needs_no_more(operation, stage))
      confirm(operation, stage, *message);
  }
}

/// Whether the stage is over, and its senders keep the operation open until that is confirmed,
/// whatever is missing.
bool Receiver::needs_no_more(const Operation& operation, const Stage& stage) {
  return stage.closed && stage.acknowledge && operation.bounded && operation.awaits_confirmations;
}

void Receiver::confirm(const Operation& operation, const Stage& stage,
                       const ReceiveMessage& message) {
  if (message.slots() == 0) return;
  const auto number = static_cast<std::uint8_t>(&stage - operation.stages.data());
  queue_credit(operation, number, message.peer(), TARPON_CREDIT_COMPLETE);
}

void Receiver::queue_credit(const Operation& operation, std::uint8_t stage, Rank peer,
                            std::uint32_t grant) {
  control_.push(ControlDue{.type = TARPON_CREDIT,
                           .stage = stage,
                           .peer = peer,
                           .tag = operation.tag,
                           .operation = operation.number,
                           .grant = grant,
                           .signature_hash = operation.signature_hash});
}

Duration Receiver::longest_delay(const Operation& operation) const {
  const bool unbounded = !operation.clock.has_started() || operation.late || operation.waits();
  return unbounded ? options_.repair_delay_max : operation.repair_delay_max;
}

RequestDelays Receiver::delays(const Operation& operation) const {
  Duration longest = longest_delay(operation);
  // The whole job waits for such a message. Its sender runs, so the requests themselves were lost.
  if (operation.waits() && !operation.late) longest = std::min(longest, options_.quiet_delay);
  longest = std::max(longest, 2 * operation.silence_delay);
  return {operation.gap_delay, operation.silence_delay, longest};
}

Time Receiver::time_message(Operation& operation, std::uint8_t stage, ReceiveMessage& message,
                            Time now) {
  if (!message.is_expected()) return kNever;
  const RequestDelays delays = this->delays(operation);
  give_up_gap(operation, operation.stages[stage], message, delays, now);
  if (message.delivered()) return kNever;
  if (now >= message.due(delays)) {
    // If nothing may be asked for again, the sender may still lack a grant that was lost.
    const std::uint8_t type = message.may_repair() ? TARPON_REPAIR : TARPON_CREDIT;
    control_.push(ControlDue{.type = type,
                             .stage = stage,
                             .peer = message.peer(),
                             .tag = operation.tag,
                             .operation = operation.number,
                             .grant = message.credit().granted(),
                             .signature_hash = operation.signature_hash});
    if (message.ask(now)) granter_.progressed(operation, message);
  }
  return message.due(delays);
}

/// Gives up the slots of a gap, if that is due, and tells their sink.
void Receiver::give_up_gap(Operation& operation, Stage& stage, ReceiveMessage& message,
                           const RequestDelays& delays, Time now) {
  std::array<tarpon_range, kMaxRepairRanges> ranges;
  const std::size_t count = message.give_up_gap(delays, now, ranges);
  for (const tarpon_range& range : std::span(ranges).first(count)) {
    for (std::uint32_t slot = range.first; slot < range.first + range.count; ++slot) {
      message.sink().lost(message.peer(), slot);
    }
  }
  if (message.delivered()) delivered_one(operation, stage, message, now);
}

}  // namespace tarpon
