#include "transport/tags/early_packets.h"

#include <algorithm>

namespace tarpon {

EarlyPackets::EarlyPackets(const Limits& limits)
    : limits_(limits), refused_(limits.operations), parking_(limits.cells, limits.cell_bytes) {}

const EarlyOperation* EarlyPackets::find(std::uint32_t tag, std::uint32_t number) const {
  for (const EarlyOperation& one : waiting_) {
    if (one.tag == tag && one.number == number) return &one;
  }
  return nullptr;
}

EarlyOperation* EarlyPackets::find_or_add(std::uint32_t tag, std::uint32_t number, Time now) {
  if (const EarlyOperation* const one = find(tag, number)) {
    return &waiting_[static_cast<std::size_t>(one - waiting_.data())];
  }
  if (waiting_.size() >= limits_.operations && !forget_stale(now)) {
    refuse(tag, number);
    return nullptr;
  }
  waiting_.push_back({.tag = tag,
                      .number = number,
                      .since = now,
                      .peers = std::vector<EarlyOperation::FromPeer>(limits_.world_size),
                      .cells = {}});
  return &waiting_.back();
}

EarlyPackets::Parked EarlyPackets::park(const tarpon_header& header,
                                        std::span<const std::byte> packet, Time begun, Time now) {
  if (parking_.available() == 0) forget_stale(now);
  EarlyOperation* const one = find_or_add(header.tag, header.operation, now);
  if (one == nullptr) return Parked::no_room;
  EarlyOperation::FromPeer& from = one->peers[header.sender];
  from.begun = std::min(from.begun, begun);
  from.read = std::min(from.read, now);
  if (from.aborted && from.abort_reason != TARPON_ABORT_EXPIRED) return Parked::aborted;
  const std::uint32_t cell =
      from.parked < limits_.packets_per_peer ? parking_.park(packet) : ParkingLot::kNone;
  if (cell == ParkingLot::kNone) {
    from.overrun = true;
    return Parked::no_room;
  }
  ++from.parked;
  one->cells.push_back(cell);
  return Parked::yes;
}

EarlyOperation::FromPeer* EarlyPackets::from(std::uint32_t tag, std::uint32_t number, Rank peer,
                                             Time now) {
  EarlyOperation* const one = find_or_add(tag, number, now);
  return one == nullptr ? nullptr : &one->peers[peer];
}

bool EarlyPackets::abort(std::uint32_t tag, std::uint32_t number, Rank peer, std::uint32_t reason,
                         std::uint64_t ranks, Time now) {
  EarlyOperation* const one = find_or_add(tag, number, now);
  if (one == nullptr) return false;
  EarlyOperation::FromPeer& from = one->peers[peer];
  from.aborted = true;
  from.abort_reason = reason;
  from.abort_ranks = ranks;
  if (reason != TARPON_ABORT_EXPIRED) release_cells(*one);  // the operation ends when it begins
  return true;
}

void EarlyPackets::refuse(std::uint32_t tag, std::uint32_t number) {
  for (const Refused& one : refused_) {
    if (one.known && one.tag == tag && one.number == number) return;
  }
  refused_[next_refused_++ % refused_.size()] = {true, tag, number};
}

std::vector<NextNumber> EarlyPackets::of_tags_from(std::uint32_t first) const {
  std::vector<NextNumber> found;
  for (const EarlyOperation& one : waiting_) {
    if (one.tag >= first) found.push_back({one.tag, one.number});
  }
  return found;
}

bool EarlyPackets::has(std::uint32_t tag) const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [tag](const EarlyOperation& one) { return one.tag == tag; });
}

bool EarlyPackets::has_expired(std::uint32_t tag, std::uint32_t number, Rank peer) const {
  const EarlyOperation* const one = find(tag, number);
  if (one == nullptr) return false;
  const EarlyOperation::FromPeer& from = one->peers[peer];
  return from.aborted && from.abort_reason == TARPON_ABORT_EXPIRED &&
         from.abort_ranks == 1ull << peer;
}

std::optional<EarlyOperation> EarlyPackets::take(std::uint32_t tag, std::uint32_t number) {
  const EarlyOperation* const one = find(tag, number);
  if (one == nullptr) return std::nullopt;
  const auto place = waiting_.begin() + (one - waiting_.data());
  std::optional<EarlyOperation> taken(std::move(*place));
  waiting_.erase(place);
  return taken;
}

bool EarlyPackets::take_refused(std::uint32_t tag, std::uint32_t number) {
  for (Refused& one : refused_) {
    if (one.known && one.tag == tag && one.number == number) return std::exchange(one.known, false);
  }
  return false;
}

void EarlyPackets::forget(std::uint32_t tag) {
  for (EarlyOperation& one : waiting_) {
    if (one.tag == tag) release_cells(one);
  }
  std::erase_if(waiting_, [tag](const EarlyOperation& one) { return one.tag == tag; });
}

/// Drops the operation that has waited longest, if it is stale. If it begins all the same, its
/// packets are asked for again.
bool EarlyPackets::forget_stale(Time now) {
  const auto oldest = std::min_element(
      waiting_.begin(), waiting_.end(),
      [](const EarlyOperation& a, const EarlyOperation& b) { return a.since < b.since; });
  if (oldest == waiting_.end() || now - oldest->since < kStale) return false;
  release_cells(*oldest);
  refuse(oldest->tag, oldest->number);
  stale_tags_.push_back(oldest->tag);
  waiting_.erase(oldest);
  return true;
}

void EarlyPackets::release_cells(EarlyOperation& one) {
  for (const std::uint32_t cell : one.cells) parking_.release(cell);
  one.cells.clear();
  for (EarlyOperation::FromPeer& from : one.peers) {
    from.overrun |= from.parked > 0;
    from.parked = 0;
  }
}

}  // namespace tarpon
