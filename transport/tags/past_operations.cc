#include "transport/tags/past_operations.h"

#include "transport/rank_mask.h"
#include "transport/wire/signature_hash.h"

namespace tarpon {
namespace {

/// Whether the sender of DATA may wait for an answer, if the operation is over here.
bool may_wait(const tarpon_header& header) {
  return (header.flags & (TARPON_FLAG_TAIL | TARPON_FLAG_REPAIR)) == TARPON_FLAG_TAIL;
}

/// Whether the packet is of another operation than `past`, under its number.
bool has_other_signature(const PastOperation* past, const tarpon_header& header) {
  return past != nullptr && past->epoch.number == header.epoch &&
         signature_hash(past->signature) != header.signature;
}

}  // namespace

void PastOperations::take_data(TagState& tag_state, const tarpon_header& header, Time now) {
  ++parts_.counters[DropReason::closed];
  ++tag_state.late_packets;
  if (!may_wait(header) || was_answered(header, now)) return;
  answer(tag_state, header, has_other_signature(tag_state.find_past(header.operation), header), 0);
}

void PastOperations::take_data_of_unknown(const TagState* tag_state, const tarpon_header& header,
                                          Time now) {
  ++parts_.counters[DropReason::closed];
  if (!may_wait(header)) return;
  if (tag_state == nullptr) {
    if (!parts_.clocks.overtaken()) tell_forgotten(header, header.sender);
  } else if (!was_answered(header, now)) {
    tell_forgotten(header, parts_.options.rank);
  }
}

/// Whether the message was answered: its tail is many packets, and one answer is enough. After a
/// while that answer may have been lost, and the next packet is answered again.
bool PastOperations::was_answered(const tarpon_header& header, Time now) {
  Answered& last = answered_[header.sender];
  const auto stage = static_cast<std::uint8_t>(tarpon_stage(&header));
  const bool same = last.known && last.tag == header.tag && last.operation == header.operation &&
                    last.stage == stage && now - last.at < parts_.options.quiet_delay;
  if (!same) last = {true, header.tag, header.operation, stage, now};
  return same;
}

void PastOperations::take_control(TagState& tag_state, const ControlPacket& packet) {
  const tarpon_header& header = packet.header();
  if (packet.type() == TARPON_REPAIR) return take_repair(tag_state, packet);
  // Two ranks that disagree and have closed would answer each other's answers for ever.
  if (packet.type() != TARPON_READY || packet.is_mismatch_answer()) return;
  const PastOperation* past = tag_state.find_past(header.operation);
  answer(tag_state, header,
         past != nullptr && past->epoch.number == header.epoch &&
             past->signature != signature_of(packet.ready()),
         0);
}

/// Returns the ranks of a closed operation of which nothing is here; after an abort, the ranks to
/// blame. When the operation is not remembered, `peer` comes too late and is one of them.
std::uint64_t PastOperations::missed(TagState& tag_state, std::uint32_t number, Rank peer) {
  if (!tag_state.has_reached(number)) return 0;  // never was
  if (const PastOperation* past = tag_state.find_past(number)) return past->ranks;
  if (const TagState::Aborted* run = tag_state.find_aborted(number)) return run->ranks;
  const bool kept = parts_.tags.find_kept(tag_state, number) != nullptr;
  return (kept ? 0 : bit(parts_.options.rank)) | bit(peer);
}

/// Tells a peer that is still at an operation how the operation ended here. `other_signature`: the
/// peer runs a different operation under this number. `gone`: ranks, besides those that were
/// absent, whose data is not available.
void PastOperations::answer(TagState& tag_state, const tarpon_header& header, bool other_signature,
                            std::uint64_t gone) {
  // A sender that has closed the operation too has nothing to learn.
  if (before(header.operation, closed_below(header))) return;
  // The sender had passed this operation before, and no longer remembers.
  if (before(header.operation, tag_state.closed_below_of[header.sender])) {
    if (!parts_.clocks.overtaken()) tell_forgotten(header, header.sender);
    return;
  }
  const PastOperation* past = tag_state.find_past(header.operation);
  ControlDue due{.type = TARPON_CLOSED,
                 .peer = header.sender,
                 .tag = header.tag,
                 .operation = header.operation};
  const bool aborted = tag_state.ended_by_abort(header.operation);
  const bool mismatched = past != nullptr && past->reason == TARPON_ABORT_MISMATCH;
  if (other_signature && (!aborted || mismatched)) {
    due.type = TARPON_READY;
    due.repeats = TARPON_READY_ANSWER;
  } else if (aborted) {
    due.type = TARPON_ABORT;
    due.reason = past != nullptr ? past->reason : tag_state.find_aborted(header.operation)->reason;
  }
  if (due.type != TARPON_READY) due.ranks = missed(tag_state, header.operation, header.sender);
  if (due.type == TARPON_CLOSED) due.ranks |= gone;
  parts_.control.push(due);
  if (due.type != TARPON_CLOSED || past == nullptr || past->marks.ranks == 0) return;
  // CLOSED says that a rank has set its mark; a CREDIT that grants nothing says which rank.
  parts_.control.push(ControlDue{.type = TARPON_CREDIT,
                                 .peer = header.sender,
                                 .tag = header.tag,
                                 .operation = header.operation,
                                 .signature_hash = signature_hash(past->signature)});
}

void PastOperations::take_repair(TagState& tag_state, const ControlPacket& packet) {
  const tarpon_header& header = packet.header();
  const KeptResult* kept = parts_.tags.find_kept(tag_state, header.operation);
  if (kept != nullptr && kept->data->stage == header.stage &&
      kept->signature_hash == header.signature) {
    RetainedDue asked{.peer = header.sender, .tag = header.tag, .number = header.operation};
    asked.count =
        packet.ranges(static_cast<std::uint32_t>(kept->data->contributors.size()), asked.ranges);
    parts_.control.push(asked);
    return;
  }
  parts_.counters.refuse_control(DropReason::unexpected);
  if (!tag_state.has_reached(header.operation)) return;  // never was, as in missed()
  // The result is gone; without an answer the peer would ask until its bound or deadline. Packets
  // of the last stage that this rank sent before it closed have had time to arrive.
  const std::uint64_t own = header.stage > 0 ? bit(parts_.options.rank) : 0;
  answer(tag_state, header, has_other_signature(tag_state.find_past(header.operation), header),
         own);
}

void PastOperations::tell_owners(const TagState& tag_state, std::uint32_t operation,
                                 std::uint64_t absent) {
  for (const Rank peer : ranks_of(absent & first_ranks(parts_.options.world_size))) {
    if (peer == parts_.options.rank) continue;
    parts_.control.push(ControlDue{.type = TARPON_CLOSED,
                                   .peer = peer,
                                   .tag = tag_state.tag,
                                   .operation = operation,
                                   .ranks = absent});
  }
}

void PastOperations::tell_forgotten(const tarpon_header& header, Rank forgetful) {
  parts_.control.push(ControlDue{.type = TARPON_ABORT,
                                 .peer = header.sender,
                                 .tag = header.tag,
                                 .operation = header.operation,
                                 .reason = TARPON_ABORT_FORGOTTEN,
                                 .ranks = bit(forgetful)});
}

}  // namespace tarpon
