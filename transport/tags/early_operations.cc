#include "transport/tags/early_operations.h"

#include <algorithm>
#include <chrono>

#include "transport/rank_mask.h"
#include "transport/wire/mark_flags.h"

namespace tarpon {
namespace {

/// Returns how many slots all peers may send unasked, of the operations that one tag may have open.
std::size_t unasked_cells(const EndpointOptions& options) {
  return std::size_t{options.initial_credit} * options.world_size * options.window;
}

}  // namespace

EarlyOperations::EarlyOperations(const Parts& parts, std::uint32_t max_payload)
    : parts_(parts),
      packets_({.world_size = parts.options.world_size,
                .operations = parts.options.early_operations,
                .packets_per_peer = parts.options.initial_credit,
                .cells = unasked_cells(parts.options),
                .cell_bytes = TARPON_HEADER_BYTES + max_payload}) {}

void EarlyOperations::take_data(const tarpon_header& header, const RxPacket& packet, Time now) {
  const std::uint32_t window = parts_.options.window;
  const std::uint32_t ahead = header.operation - parts_.tags.lowest_open(header.tag);
  if (ahead >= window) {
    // Its sender has closed operations that are still open here, and this operation comes soon.
    if (ahead < 2 * window) packets_.refuse(header.tag, header.operation);
    ++parts_.counters[DropReason::outside_window];
    return;
  }
  switch (packets_.park(header, {packet.data, packet.length},
                        parts_.clocks.begun_at_sender({}, now), now)) {
    case EarlyPackets::Parked::yes:
      ++parts_.counters.parked;
      break;
    case EarlyPackets::Parked::aborted:
      ++parts_.counters[DropReason::closed];
      break;
    case EarlyPackets::Parked::no_room:
      ++parts_.counters[DropReason::early_overrun];
      break;
  }
}

void EarlyOperations::take_control(const ControlPacket& packet, Time now) {
  const tarpon_header& header = packet.header();
  const std::uint32_t lowest = parts_.tags.lowest_open(header.tag);
  if (header.operation - lowest >= parts_.options.window) {
    if (packet.type() == TARPON_ABORT) note_abort_beyond_window(packet, lowest);
    parts_.counters.refuse_control(DropReason::outside_window);
  } else if (packet.type() == TARPON_ABORT) {
    take_abort(packet, now);
  } else if (packet.type() == TARPON_READY) {
    take_ready(packet, now);
  }
}

/// Notes the ABORT of an operation that cannot be kept yet.
void EarlyOperations::note_abort_beyond_window(const ControlPacket& packet, std::uint32_t lowest) {
  const std::uint32_t number = packet.header().operation;
  TagState* const tag_state = parts_.tags.find(packet.header().tag);
  if (tag_state == nullptr) return;
  NumberRange& known = tag_state->early_aborts_of[packet.sender()];
  const bool over = !before(lowest, known.end);  // all operations in it
  if (over || before(number, known.first)) known.first = number;
  if (!before(number, known.end)) known.end = number + 1;
}

void EarlyOperations::take_abort(const ControlPacket& packet, Time now) {
  const tarpon_header& header = packet.header();
  const bool kept = packets_.abort(header.tag, header.operation, header.sender, packet.reason(),
                                   packet.blamed(first_ranks(parts_.options.world_size)), now);
  if (!kept) parts_.counters.refuse_control(DropReason::early_overrun);
}

void EarlyOperations::take_ready(const ControlPacket& packet, Time now) {
  const tarpon_header& header = packet.header();
  EarlyOperation::FromPeer* const from =
      packets_.from(header.tag, header.operation, header.sender, now);
  if (from == nullptr) return parts_.counters.refuse_control(DropReason::early_overrun);
  const tarpon_ready ready = packet.ready();
  from->announced = true;
  from->terms = terms_of(ready);
  from->begun = std::min(
      from->begun, parts_.clocks.begun_at_sender(std::chrono::microseconds(ready.age_us), now));
  from->read = std::min(from->read, now);
  from->readies = std::max(from->readies, packet.repeats());
  from->marks = marks_in(header, first_ranks(parts_.options.world_size));
  from->epoch = header.epoch;
  from->signature = signature_of(ready);
  std::copy(std::begin(ready.grant), std::end(ready.grant), from->grants.begin());
}

bool EarlyOperations::has_ended(const TagState& tag_state, Rank peer, std::uint32_t number) const {
  return before(number, tag_state.closed_below_of[peer]) &&
         !parts_.participants.excludes(peer, tag_state.tag, number) &&
         !tag_state.early_aborts_of[peer].contains(number) &&
         !packets_.has_expired(tag_state.tag, number, peer);
}

}  // namespace tarpon
