#include "transport/operation/journal.h"

#include <algorithm>

namespace tarpon {
namespace {

/// REPAIR, READY, CLOSED and ABORT are recorded; the rest is too frequent.
RecordKind kind_of(std::uint8_t type, bool out) {
  switch (type) {
    case TARPON_REPAIR:
      return out ? RecordKind::repair_out : RecordKind::repair_in;
    case TARPON_READY:
      return out ? RecordKind::ready_out : RecordKind::ready_in;
    case TARPON_CLOSED:
      return out ? RecordKind::closed_out : RecordKind::closed_in;
    case TARPON_ABORT:
      return out ? RecordKind::abort_out : RecordKind::abort_in;
    default:
      return RecordKind::none;
  }
}

RecordKind kind_of(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::stage_closed:
      return RecordKind::stage_closed;
    case Event::Kind::acknowledged:
      return RecordKind::acknowledged;
    case Event::Kind::mismatch:
      return RecordKind::mismatch;
    case Event::Kind::aborted:
      return RecordKind::none;  // the record abort_in says it
    case Event::Kind::deadline:
      return RecordKind::deadline;
    case Event::Kind::silent:
    case Event::Kind::heard:
      return RecordKind::none;  // of no operation
    case Event::Kind::epoch:
      return RecordKind::epoch;
    case Event::Kind::clock:
      return RecordKind::none;  // the first packets say it
    case Event::Kind::extended:
      return RecordKind::none;  // the end of the stage says it
    case Event::Kind::late:
      return RecordKind::late;
  }
  return RecordKind::none;
}

/// Sets the fields that only some types of packet have. `slot` holds the reason of an ABORT.
void complete(Record& record, std::uint32_t slot, std::uint64_t ranks) {
  const bool aborts = record.kind == RecordKind::abort_in || record.kind == RecordKind::abort_out;
  const bool closes = record.kind == RecordKind::closed_in || record.kind == RecordKind::closed_out;
  if (aborts) record.detail = static_cast<std::uint8_t>(std::min(slot, 0xffu));
  if (aborts || closes) record.set_mask(ranks);
}

/// Whether to leave out repetition `count`: it is not a power of two. Packets that come again and
/// again until a deadline must not push the beginning out of the ring.
bool often(std::uint32_t count) {
  return (count & (count - 1)) != 0;
}

}  // namespace

void Journal::tell(const Operation& operation, Event event, Time now) {
  event.operation = operation.handle;
  record(operation, event, now);
  events_.push_back(event);
}

void Journal::tell(Event event) {
  event.operation.index = kNoOperation;
  events_.push_back(event);
}

bool Journal::poll(Event& event) {
  if (events_.empty()) return false;
  event = events_.front();
  events_.pop_front();
  return true;
}

void Journal::forget(OperationHandle handle) {
  std::erase_if(events_, [handle](const Event& event) { return event.operation == handle; });
}

void Journal::note(RecordKind kind, const Operation& operation, Rank peer, Time now,
                   std::uint32_t value, std::uint8_t stage) {
  if (recorder_ == nullptr) return;
  recorder_->write({.time = now,
                    .kind = kind,
                    .stage = stage,
                    .peer = static_cast<std::uint8_t>(peer),
                    .tag = operation.tag,
                    .operation = operation.number,
                    .value = value});
}

void Journal::record(const Operation& operation, const Event& event, Time now) {
  const RecordKind kind = kind_of(event.kind);
  if (recorder_ == nullptr || kind == RecordKind::none) return;
  const bool of_peer =
      kind == RecordKind::mismatch || kind == RecordKind::late || kind == RecordKind::epoch;
  recorder_->write({.time = now,
                    .kind = kind,
                    .stage = event.stage,
                    .peer = of_peer ? static_cast<std::uint8_t>(event.peer) : kNoPeer,
                    .detail = static_cast<std::uint8_t>(event.closing),
                    .tag = operation.tag,
                    .operation = operation.number,
                    .value = event.epoch.number});
}

std::uint32_t Journal::count_repair(const tarpon_header& header) {
  RepairsAsked& asked = repairs_in_[header.sender];
  if (asked.tag != header.tag || asked.number != header.operation) {
    asked = {.tag = header.tag, .number = header.operation, .count = 0};
  }
  return ++asked.count;
}

void Journal::note_in(const ControlPacket& packet, Time now) {
  const tarpon_header& header = packet.header();
  const RecordKind kind = kind_of(header.type, false);
  if (recorder_ == nullptr || kind == RecordKind::none) return;
  Record record{.time = now,
                .kind = kind,
                .stage = header.stage,
                .peer = static_cast<std::uint8_t>(header.sender),
                .tag = header.tag,
                .operation = header.operation,
                .value = packet.slot()};
  if (kind == RecordKind::repair_in) record.value = count_repair(header);
  const bool counted = kind == RecordKind::repair_in ||
                       (kind == RecordKind::ready_in && !packet.is_mismatch_answer());
  if (counted && often(record.value)) return;
  complete(record, packet.slot(), header.contributors);
  recorder_->write(record);
}

void Journal::note_out(const ControlDue& due, std::uint32_t asks, Time now) {
  const RecordKind kind = kind_of(due.type, true);
  if (recorder_ == nullptr || kind == RecordKind::none) return;
  Record record{.time = now,
                .kind = kind,
                .stage = due.stage,
                .peer = static_cast<std::uint8_t>(due.peer),
                .tag = due.tag,
                .operation = due.operation,
                .value = due.slot()};
  if (kind == RecordKind::repair_out) record.value = asks;
  const bool counted = kind == RecordKind::repair_out ||
                       (kind == RecordKind::ready_out && due.repeats != TARPON_READY_ANSWER);
  if (counted && often(record.value)) return;
  complete(record, due.slot(), due.ranks);
  recorder_->write(record);
}

}  // namespace tarpon
