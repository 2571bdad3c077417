// Packets of operations that this rank has not begun: kept within limits, and taken up when it
// does.
#include <algorithm>
#include <cstring>

#include "transport/endpoint/state.h"

namespace tarpon {

void Endpoint::State::refuse_early(std::uint32_t tag, std::uint32_t number) {
  for (const EarlyRefused& one : early_refused) {
    if (one.known && one.tag == tag && one.number == number) return;
  }
  early_refused[next_refused++ % early_refused.size()] = {true, tag, number};
}

/// Makes room where an operation has waited so long that this rank may never begin it. Should it
/// begin all the same, what was parked is asked for. False when there is none.
bool Endpoint::State::forget_stale_early() {
  constexpr Duration kStale = 10s;
  const auto oldest = std::min_element(
      early.begin(), early.end(),
      [](const EarlyOperation& a, const EarlyOperation& b) { return a.since < b.since; });
  if (oldest == early.end() || latest - oldest->since < kStale) return false;
  release_cells(*oldest);
  refuse_early(oldest->tag, oldest->number);
  passed_tags.push_back(oldest->tag);
  early.erase(oldest);
  return true;
}

/// Its packets are asked for again where they are needed.
void Endpoint::State::release_cells(EarlyOperation& one) {
  for (const std::uint32_t cell : one.cells) early_parking.release(cell);
  one.cells.clear();
  for (EarlyOperation::FromPeer& from : one.peers) {
    from.overrun |= from.parked > 0;
    from.parked = 0;
  }
}

/// Whether packets of the tag wait for an operation that this rank has not begun.
bool Endpoint::State::has_early(std::uint32_t tag) const {
  return std::any_of(early.begin(), early.end(),
                     [tag](const EarlyOperation& one) { return one.tag == tag; });
}

EarlyOperation* Endpoint::State::early_for(std::uint32_t tag, std::uint32_t number) {
  for (EarlyOperation& one : early) {
    if (one.tag == tag && one.number == number) return &one;
  }
  if (early.size() >= options.early_operations && !forget_stale_early()) {
    refuse_early(tag, number);
    return nullptr;
  }
  EarlyOperation fresh;
  fresh.tag = tag;
  fresh.number = number;
  fresh.since = latest;
  fresh.peers.resize(options.world_size);
  early.push_back(std::move(fresh));
  return &early.back();
}

void Endpoint::State::take_early(const tarpon_header& header, std::span<const std::byte> packet) {
  const std::uint32_t ahead = header.operation - tags.lowest_open(header.tag);
  if (ahead >= options.window) {
    // Its sender has closed what is open here still, and this operation comes soon.
    if (ahead < 2 * options.window) refuse_early(header.tag, header.operation);
    ++counters[DropReason::outside_window];
    return;
  }
  if (early_parking.available() == 0) forget_stale_early();
  EarlyOperation* one = early_for(header.tag, header.operation);
  if (one == nullptr) {
    ++counters[DropReason::early_overrun];
    return;
  }
  EarlyOperation::FromPeer& from = one->peers[header.sender];
  note_begun(from, {});
  if (from.aborted && from.abort_reason != TARPON_ABORT_EXPIRED) {  // it will not run
    ++counters[DropReason::closed];
    return;
  }
  const std::uint32_t cell =
      from.parked < options.initial_credit ? early_parking.park(packet) : ParkingLot::kNone;
  if (cell == ParkingLot::kNone) {
    from.overrun = true;
    ++counters[DropReason::early_overrun];
    return;
  }
  ++from.parked;
  ++counters.parked;
  one->cells.push_back(cell);
}

/// Whether `peer` has said that its deadline passed before it could begin.
bool Endpoint::State::passed_over(const Operation& operation, Rank peer) const {
  for (const EarlyOperation& one : early) {
    if (one.tag != operation.tag || one.number != operation.number) continue;
    const EarlyOperation::FromPeer& from = one.peers[peer];
    return from.aborted && from.abort_reason == TARPON_ABORT_EXPIRED &&
           from.abort_ranks == 1ull << peer;
  }
  return false;
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
  for (EarlyRefused& refused : early_refused) {
    if (!refused.known || refused.tag != operation.tag || refused.number != operation.number)
      continue;
    refused.known = false;
    repeated = kAllSlots;  // nobody knows
    for (Rank peer = 0; peer < options.world_size; ++peer) ask_again(operation, peer);
  }
  const auto found = std::find_if(early.begin(), early.end(), [&](const EarlyOperation& one) {
    return one.tag == operation.tag && one.number == operation.number;
  });
  if (found == early.end()) return repeated;
  const EarlyOperation taken = std::move(*found);
  early.erase(found);
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    const EarlyOperation::FromPeer& from = taken.peers[peer];
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
      take_nonfinite(operation, from.nonfinite);
    }
    for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
      if (from.grants[i] != TARPON_CREDIT_COMPLETE) apply_grant(operation, i, peer, from.grants[i]);
    }
  }
  for (const std::uint32_t cell : taken.cells) {
    const std::span<const std::byte> packet = early_parking.at(cell);
    tarpon_header header;
    std::memcpy(&header, packet.data(), sizeof header);
    if (other_epoch(operation, header)) {
      ++counters[DropReason::epoch];
    } else {
      heard_from(operation, header.sender, {});
      accept(operation, header, packet, now);
    }
    early_parking.release(cell);
  }
  give_credit(now);
  return repeated;
}

}  // namespace tarpon
