// Packets in, of operations that are over here: answers that say how they ended.
#include "transport/endpoint/state.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

/// Handles a control packet of an operation that is over here.
void Endpoint::State::take_past_control(Channel& channel, const ControlPacket& packet) {
  const tarpon_header& header = packet.header();
  if (header.type == TARPON_READY) {
    // Two ranks that disagree and have closed would answer each other's answers for ever.
    if (packet.is_mismatch_answer()) return;
    const PastOperation* past = channel.find_past(header.operation);
    answer_past(channel, header,
                past != nullptr && past->epoch.number == header.epoch &&
                    past->signature != signature_of(packet.ready()),
                0);
  } else if (header.type == TARPON_REPAIR) {
    apply_repair_of_closed(channel, packet);
  }
}

/// Returns the ranks of a closed operation of which nothing is here; after an abort, the ranks to
/// blame. When the operation is not remembered, `peer` comes too late and is one of them.
std::uint64_t Endpoint::State::missed(Channel& channel, std::uint32_t number, Rank peer) {
  if (!channel.has_reached(number)) return 0;  // never was
  if (const PastOperation* past = channel.find_past(number)) return past->ranks;
  if (const Channel::Aborted* run = channel.find_aborted(number)) return run->ranks;
  const std::uint64_t own = tags.find_kept(channel, number) == nullptr ? 1ull << options.rank : 0;
  return own | 1ull << peer;
}

/// Tells a peer that is still at an operation how the operation ended here. `other_signature`: the
/// peer runs a different operation under this number. `gone`: ranks, besides those that were
/// absent, whose data is not available.
void Endpoint::State::answer_past(Channel& channel, const tarpon_header& header,
                                  bool other_signature, std::uint64_t gone) {
  // A sender that has closed the operation too has nothing to learn.
  if (before(header.operation, closed_below(header))) return;
  // The sender had passed this operation before, and no longer remembers.
  if (before(header.operation, channel.closed_below_of[header.sender])) {
    if (!clocks.overtaken()) tell_forgotten(header, header.sender);
    return;
  }
  const PastOperation* past = channel.find_past(header.operation);
  ControlDue answer{.type = TARPON_CLOSED,
                    .peer = header.sender,
                    .tag = header.tag,
                    .operation = header.operation};
  const bool aborted = channel.ended_by_abort(header.operation);
  const bool mismatched = past != nullptr && past->reason == TARPON_ABORT_MISMATCH;
  if (other_signature && (!aborted || mismatched)) {
    answer.type = TARPON_READY;
    answer.repeats = TARPON_READY_ANSWER;
  } else if (aborted) {
    answer.type = TARPON_ABORT;
    answer.reason = past != nullptr ? past->reason : channel.find_aborted(header.operation)->reason;
  }
  if (answer.type != TARPON_READY) answer.ranks = missed(channel, header.operation, header.sender);
  if (answer.type == TARPON_CLOSED) answer.ranks |= gone;
  control.push(answer);
  if (answer.type != TARPON_CLOSED || past == nullptr || past->marks.ranks == 0) return;
  // CLOSED says that a rank has set its mark; a CREDIT that grants nothing says which rank.
  control.push(ControlDue{.type = TARPON_CREDIT,
                          .peer = header.sender,
                          .tag = header.tag,
                          .operation = header.operation,
                          .signature_hash = signature_hash(past->signature)});
}

void Endpoint::State::apply_repair_of_closed(Channel& channel, const ControlPacket& packet) {
  const tarpon_header& header = packet.header();
  const KeptResult* kept = tags.find_kept(channel, header.operation);
  if (kept == nullptr || kept->data->stage != header.stage ||
      kept->signature_hash != header.signature) {
    refuse_control(DropReason::unexpected);
    if (!channel.has_reached(header.operation)) return;  // never was, as in missed()
    // The result is gone; without an answer the peer would ask until its bound or deadline.
    const PastOperation* past = channel.find_past(header.operation);
    // Packets of the last stage that this rank sent before it closed have had time to arrive.
    const std::uint64_t own = header.stage > 0 ? 1ull << options.rank : 0;
    answer_past(channel, header,
                past != nullptr && past->epoch.number == header.epoch &&
                    signature_hash(past->signature) != header.signature,
                own);
    return;
  }
  RetainedDue asked{.peer = header.sender, .tag = header.tag, .number = header.operation};
  asked.count =
      packet.ranges(static_cast<std::uint32_t>(kept->data->contributors.size()), asked.ranges);
  control.push(asked);
}

}  // namespace tarpon
