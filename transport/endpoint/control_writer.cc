#include "transport/endpoint/control_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "transport/operation/open_operation.h"
#include "transport/wire/mark_flags.h"
#include "transport/wire/signature_hash.h"

namespace tarpon {

std::size_t ControlWriter::emit_control(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    const std::optional<ControlDue> one = parts_.control.pop();
    if (!one) break;
    if (fill(now, *one, frames[used])) ++used;
  }
  return used;
}

std::size_t ControlWriter::emit_agreements(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    const std::optional<AgreementPacket> one = parts_.control.pop_agreement();
    if (!one) break;
    tarpon_header header = parts_.writer.header(now, one->peer, TARPON_AGREEMENT, 0, 0, 0);
    header.closed_below = 0;  // it belongs to no tag
    TxPacket& frame = frames[used++];
    PacketWriter::address(frame, one->peer);
    frame.length = sizeof one->payload;
    std::memcpy(frame.room, &one->payload, sizeof one->payload);
    parts_.writer.write(header, {.slot = 0, .flags = header.flags}, {&frame, 1});
  }
  return used;
}

/// Returns false when the packet is needed no more.
bool ControlWriter::fill(Time now, const ControlDue& due, TxPacket& frame) {
  tarpon_header header =
      parts_.writer.header(now, due.peer, due.type, due.tag, due.operation, due.stage);
  header.signature = due.signature_hash;
  header.contributors = due.ranks;
  std::uint32_t slot = due.slot();
  std::uint32_t asks = 0;  // how often a REPAIR has asked for its slots, in a row
  PacketWriter::address(frame, due.peer);

  TagState* const tag_state = parts_.tags.find(due.tag);
  OpenOperation* const open = tag_state == nullptr ? nullptr : tag_state->find_open(due.operation);
  Operation* const operation = open == nullptr ? nullptr : &open->state();
  const PastOperation* past = tag_state == nullptr ? nullptr : tag_state->find_past(due.operation);
  if (operation != nullptr) {
    PacketWriter::mark_epoch(operation->epoch, header);
  } else if (past != nullptr) {
    PacketWriter::mark_epoch(past->epoch, header);
  }
  if (due.type == TARPON_READY && !fill_ready(due, operation, past, header, frame)) return false;
  if (due.type == TARPON_REPAIR &&
      (operation == nullptr || !fill_repair(now, due, *operation, slot, asks, frame))) {
    return false;
  }
  if (due.type == TARPON_CREDIT) {
    ++parts_.counters.credits_out;
    if (operation != nullptr && due.stage == 0) {
      operation->peers[due.peer].set_answer_queued(false);
    }
  }
  if (operation != nullptr) {
    carry_marks(operation->marks, header);
  } else if (past != nullptr) {
    carry_marks(past->marks, header);
  }
  parts_.journal.note_out(due, asks, now);
  parts_.writer.write(header,
                      {.slot = slot, .flags = header.flags, .contributors = header.contributors},
                      {&frame, 1});
  return true;
}

bool ControlWriter::fill_ready(const ControlDue& due, const Operation* operation,
                               const PastOperation* past, tarpon_header& header, TxPacket& frame) {
  // The READY of a closed operation goes to a peer that runs a different one under its number.
  if (operation == nullptr && past == nullptr) return false;
  // ABORT answers for operations that were given up: one that never began has no signature that
  // could differ.
  if (past != nullptr && past->aborted && past->reason != TARPON_ABORT_MISMATCH) return false;
  const Signature& signature = operation != nullptr ? operation->signature : past->signature;
  tarpon_ready ready{};
  std::copy(signature.begin(), signature.end(), ready.signature);
  for (std::uint32_t i = 0; operation != nullptr && i < operation->stage_count; ++i) {
    const ReceiveMessage* message = operation->stages[i].receive_from(due.peer);
    ready.grant[i] = message == nullptr ? 0 : message->credit().granted();
  }
  if (operation != nullptr) {
    ready.age_us = static_cast<std::uint32_t>((operation->opened - operation->clock.began()) / 1us);
    const bool alike = operation->terms_by_peer.empty();
    const CallTerms& terms = alike ? operation->terms : operation->terms_by_peer[due.peer];
    std::copy(terms.begin(), terms.end(), ready.terms);
  }
  header.signature = signature_hash(signature);
  frame.length = sizeof ready;
  std::memcpy(frame.room, &ready, sizeof ready);
  return true;
}

bool ControlWriter::fill_repair(Time now, const ControlDue& due, Operation& operation,
                                std::uint32_t& grant, std::uint32_t& asks, TxPacket& frame) {
  const Stage& stage = operation.stages[due.stage];
  ReceiveMessage* const message = operation.stages[due.stage].receive_from(due.peer);
  if (stage.closed || message == nullptr || message->delivered()) return false;
  std::array<tarpon_range, kMaxRepairRanges> room;
  const std::span<tarpon_range> ranges(room.data(), max_entries_);
  const ReceiveMessage::Request request =
      message->request(parts_.granter.repair(operation.slot_bytes), ranges);
  asks = request.asks;
  parts_.granter.inflow().granted(now, std::uint64_t{message->credit().requested()} *
                                           (operation.slot_bytes + TARPON_HEADER_BYTES));
  parts_.granter.progressed(operation, *message);
  grant = message->credit().granted();
  frame.length = static_cast<std::uint32_t>(request.runs * sizeof(tarpon_range));
  std::memcpy(frame.room, ranges.data(), frame.length);
  ++parts_.counters.repairs_requested;
  return true;
}

}  // namespace tarpon
