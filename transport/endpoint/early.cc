// Packets of operations that this rank has not begun: they are kept within limits, and applied when
// it begins them.
#include <algorithm>
#include <cstring>

#include "transport/endpoint/state.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

void Endpoint::State::take_early(const tarpon_header& header, const RxPacket& packet) {
  const std::uint32_t ahead = header.operation - tags.lowest_open(header.tag);
  if (ahead >= options.window) {
    // Its sender has closed operations that are still open here, and this operation comes soon.
    if (ahead < 2 * options.window) early.refuse(header.tag, header.operation);
    ++counters[DropReason::outside_window];
    return;
  }
  switch (early.park(header, {packet.data, packet.length}, begun_at_sender({}), latest)) {
    case EarlyPackets::Parked::yes:
      ++counters.parked;
      break;
    case EarlyPackets::Parked::aborted:
      ++counters[DropReason::closed];
      break;
    case EarlyPackets::Parked::no_room:
      ++counters[DropReason::early_overrun];
      break;
  }
}

/// Allows dropped early packets from `peer` to be asked for again, in bounded mode too: this rank
/// lost them itself.
void Endpoint::State::ask_again(Operation& operation, Rank peer) {
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    if (ReceiveMessage* message = operation.stages[i].receive_from(peer)) {
      message->repair_below =
          std::max(message->repair_below, std::min(message->slots, options.initial_credit));
    }
  }
}

/// Applies what came early. Returns the largest number of times that a peer has repeated its READY.
std::uint32_t Endpoint::State::adopt_early(Operation& operation, Time now) {
  std::uint32_t repeated = 0;
  if (early.take_refused(operation.tag, operation.number)) {
    repeated = kAllSlots;  // unknown
    for (Rank peer = 0; peer < options.world_size; ++peer) ask_again(operation, peer);
  }
  const std::optional<EarlyOperation> taken = early.take(operation.tag, operation.number);
  if (!taken) return repeated;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    const EarlyOperation::FromPeer& from = taken->peers[peer];
    repeated = std::max(repeated, from.readies);
    if (from.overrun) ask_again(operation, peer);
    const bool announced =
        from.announced && (!operation.bounded || from.epoch == operation.epoch.number);
    if (from.announced || from.aborted || from.parked > 0) {
      operation.peers[peer].begun = std::min(from.begun, now);
      operation.peers[peer].read_after = from.begun == kNever ? kUnknownAge : Duration{};
    }
    if (announced) operation.peers[peer].terms = from.terms;
    if (announced || from.aborted) heard_from(operation, peer, {});
    operation.begun_late |= from.aborted;
    if (from.aborted) take_abort(operation, peer, from.abort_reason, from.abort_ranks, now);
    if (!announced) continue;
    if (from.signature != operation.signature) {
      tell_mismatch(operation, peer, &from.signature, now);
    } else {
      take_marks(operation, from.marks);
    }
    for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
      if (from.grants[i] != TARPON_CREDIT_COMPLETE) apply_grant(operation, i, peer, from.grants[i]);
    }
  }
  for (const std::uint32_t cell : taken->cells) {
    const std::span<const std::byte> packet = early.packet(cell);
    tarpon_header header;
    std::memcpy(&header, packet.data(), sizeof header);
    if (other_epoch(operation, header)) {
      ++counters[DropReason::epoch];
    } else {
      heard_from(operation, header.sender, {});
      const RxPacket one{.data = packet.data(),
                         .length = static_cast<std::uint32_t>(packet.size()),
                         .source = header.sender};
      accept(operation, header, {&one, 1}, now);
    }
    early.release(cell);
  }
  receiver.give_credit(open_operations, now);
  return repeated;
}

/// Handles a control packet of an operation that is not open here yet. Types other than READY and
/// ABORT come again once it is.
void Endpoint::State::take_early_control(const ControlPacket& packet) {
  const tarpon_header& header = packet.header();
  Channel* channel = tags.find(header.tag);
  const std::uint32_t lowest = tags.lowest_open(header.tag);
  if (header.operation - lowest >= options.window) {
    if (header.type == TARPON_ABORT && channel != nullptr) {
      NumberRange& known = channel->early_aborts_of[header.sender];
      const bool over = !before(lowest, known.end);  // all operations in it
      if (over || before(header.operation, known.first)) known.first = header.operation;
      if (!before(header.operation, known.end)) known.end = header.operation + 1;
    }
    return refuse_control(DropReason::outside_window);
  }
  if (header.type != TARPON_READY && header.type != TARPON_ABORT) return;
  if (header.type == TARPON_ABORT) {
    const bool kept = early.abort(header.tag, header.operation, header.sender, packet.reason(),
                                  packet.blamed(everybody()), latest);
    if (!kept) refuse_control(DropReason::early_overrun);
    return;
  }
  EarlyOperation::FromPeer* const known =
      early.from(header.tag, header.operation, header.sender, latest);
  if (known == nullptr) return refuse_control(DropReason::early_overrun);
  EarlyOperation::FromPeer& from = *known;
  const tarpon_ready ready = packet.ready();
  from.announced = true;
  from.terms = terms_of(ready);
  from.begun = std::min(from.begun, begun_at_sender(std::chrono::microseconds(ready.age_us)));
  from.readies = std::max(from.readies, packet.repeats());
  from.marks = marks_in(header);
  from.epoch = header.epoch;
  from.signature = signature_of(ready);
  std::copy(std::begin(ready.grant), std::end(ready.grant), from.grants.begin());
}

}  // namespace tarpon
