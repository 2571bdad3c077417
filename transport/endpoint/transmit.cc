// Packets out: control, HEARTBEATs, AGREEMENTs, slots of closed operations, then DATA (sender.h).
#include <algorithm>
#include <cstring>
#include <span>

#include "transport/endpoint/state.h"

namespace tarpon {

std::size_t Endpoint::poll_transmit(Time now, std::span<TxPacket> frames) {
  std::size_t used = state_->emit_control(now, frames);
  used += state_->emit_heartbeats(now, frames.subspan(used));
  used += state_->emit_agreements(now, frames.subspan(used));
  State& s = *state_;
  used += s.sender.send_retained(now, s.control, s.tags, frames.subspan(used), s.timer);
  used += s.sender.send(now, s.open_operations, frames.subspan(used), s.timer);
  return used;
}

std::size_t Endpoint::State::emit_control(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    const std::optional<ControlDue> one = control.pop();
    if (!one) break;
    if (fill_control(now, *one, frames[used])) ++used;
  }
  return used;
}

std::size_t Endpoint::State::emit_agreements(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    const std::optional<AgreementPacket> one = control.pop_agreement();
    if (!one) break;
    tarpon_header header = writer.header(now, one->peer, TARPON_AGREEMENT, 0, 0, 0);
    header.closed_below = 0;  // it belongs to no tag
    TxPacket& frame = frames[used++];
    PacketWriter::address(frame, one->peer);
    frame.length = sizeof one->payload;
    std::memcpy(frame.room, &one->payload, sizeof one->payload);
    writer.write(header, {.slot = 0, .flags = header.flags}, {&frame, 1});
  }
  return used;
}

bool Endpoint::State::fill_control(Time now, const ControlDue& due, TxPacket& frame) {
  tarpon_header header = writer.header(now, due.peer, due.type, due.tag, due.operation, due.stage);
  header.signature = due.signature_hash;
  header.contributors = due.ranks;
  std::uint32_t slot = due.slot();
  std::uint32_t asks = 0;  // of a REPAIR, in a row
  PacketWriter::address(frame, due.peer);

  Channel* channel = tags.find(due.tag);
  Operation* operation = channel == nullptr ? nullptr : channel->find_open(due.operation);
  const PastOperation* past = channel == nullptr ? nullptr : channel->find_past(due.operation);
  if (operation != nullptr) {
    PacketWriter::mark_epoch(operation->epoch, header);
  } else if (past != nullptr) {
    PacketWriter::mark_epoch(past->epoch, header);
  }
  if (due.type == TARPON_READY) {
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
      ready.grant[i] = message == nullptr ? 0 : message->granted;
    }
    if (operation != nullptr) {
      ready.age_us = static_cast<std::uint32_t>((operation->opened - operation->began) / 1us);
      std::copy(operation->terms.begin(), operation->terms.end(), ready.terms);
    }
    header.signature = signature_hash(signature);
    frame.length = sizeof ready;
    std::memcpy(frame.room, &ready, sizeof ready);
  } else if (due.type == TARPON_REPAIR) {
    if (operation == nullptr) return false;
    const Stage& stage = operation->stages[due.stage];
    ReceiveMessage* message = operation->stages[due.stage].receive_from(due.peer);
    if (stage.closed || message == nullptr || message->presence.complete()) return false;
    std::array<tarpon_range, kMaxRepairRanges> room;
    const std::span<tarpon_range> ranges(room.data(), max_entries());
    const std::uint32_t below = std::min(message->granted, message->repair_below);
    const std::uint32_t most = granter.repair(operation->slot_bytes);
    asks = message->asks;
    std::size_t count = message->lost(below, most, ranges);
    if (count == 0) {
      // Without proof of a loss one slot of each flow is asked for: its answer tells whether the
      // rest is lost or only late.
      count = message->first_missing(below, ranges);
    } else if (asks > 1) {
      // What counts as lost in one flow may never have been sent: it may wait for a slot of
      // another flow.
      count = message->lost_or_first(below, most, ranges);
    }
    message->asked_for = 0;
    for (std::size_t i = 0; i < count; ++i) message->asked_for += ranges[i].count;
    inflow.granted(
        now, std::uint64_t{message->asked_for} * (operation->slot_bytes + TARPON_HEADER_BYTES));
    granter.progressed(*operation, *message);
    slot = message->granted;
    frame.length = static_cast<std::uint32_t>(count * sizeof(tarpon_range));
    std::memcpy(frame.room, ranges.data(), frame.length);
    ++counters.repairs_requested;
  }
  if (due.type == TARPON_CREDIT) {
    ++counters.credits_out;
    if (operation != nullptr && due.stage == 0) operation->peers[due.peer].answer_queued = false;
  }
  mark_control(due, operation, header);
  journal.note_out(due, asks, now);
  writer.write(header, {.slot = slot, .flags = header.flags, .contributors = header.contributors},
               {&frame, 1});
  return true;
}

}  // namespace tarpon
