// Packets of operations that this rank has not begun: kept within limits, and taken up when it
// does.
#include <algorithm>
#include <cstring>

#include "transport/endpoint/state.h"

namespace tarpon {

void Endpoint::State::take_early(const tarpon_header& header, std::span<const std::byte> packet) {
  const std::uint32_t ahead = header.operation - tags.lowest_open(header.tag);
  if (ahead >= options.window) {
    // Its sender has closed what is open here still, and this operation comes soon.
    if (ahead < 2 * options.window) early.refuse(header.tag, header.operation);
    ++counters[DropReason::outside_window];
    return;
  }
  switch (early.park(header, packet, begun_at_sender({}), latest)) {
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

/// Early packets from `peer` were dropped: our own loss, asked for again in bounded mode too.
void Endpoint::State::ask_again(Operation& operation, Rank peer) {
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    if (ReceiveMessage* message = operation.stages[i].receive_from(peer)) {
      message->repair_below =
          std::max(message->repair_below, std::min(message->slots, options.initial_credit));
    }
  }
}

/// Returns how often a peer has repeated its READY, at most.
std::uint32_t Endpoint::State::adopt_early(Operation& operation, Time now) {
  std::uint32_t repeated = 0;
  if (early.take_refused(operation.tag, operation.number)) {
    repeated = kAllSlots;  // nobody knows
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
      accept(operation, header, packet, now);
    }
    early.release(cell);
  }
  receiver.give_credit(open_operations, now);
  return repeated;
}

}  // namespace tarpon
