#include "transport/operation/lateness_check.h"

#include <algorithm>

#include "transport/peers/peer_clocks.h"

namespace tarpon {
namespace {

/// Number of READYs that a peer repeats in vain before this rank asks. The third one leaves
/// eight quiet delays after the operation opened (RELIABILITY.md, "Announcing").
constexpr std::uint32_t kLongWait = 3;

bool all_sent(Operation& operation) {
  const std::vector<SendMessage>& sends = operation.last_stage().sends;
  return std::all_of(sends.begin(), sends.end(),
                     [](const auto& one) { return one.is_done() || one.has_all_left(); });
}

/// Whether a peer can answer now that could not answer the question before, as it has begun since.
/// True when there was no such peer.
bool has_new_answerer(const Operation& operation) {
  const std::uint64_t not_begun = operation.inquiry.not_begun;
  if (not_begun == 0) return true;
  for (Rank peer = 0; peer < operation.peers.size(); ++peer) {
    if ((not_begun >> peer & 1) != 0 && operation.peers[peer].heard()) return true;
  }
  return false;
}

/// When the wait for the answers to a question of `now` ends.
Time patience(Operation& operation, Time now) {
  const bool known = operation.last_stage().end != kNever;  // else the caller has not said yet
  return known ? std::min(after(now, operation.grace), operation.deadline) : operation.deadline;
}

}  // namespace

void LatenessCheck::look(Operation& operation, Time now) {
  Inquiry& inquiry = operation.inquiry;
  if (inquiry.unanswered > 0) return;
  if (inquiry.to_confirm && all_sent(operation)) {
    // The question must not overtake that stage: a peer that has not got the stage would call the
    // operation open.
    inquiry.gone_out = std::min(inquiry.gone_out, now);
    if (now < inquiry.gone_out + operation.gap_delay) return;
    inquiry.to_confirm = false;
    ask_all(operation, now);
  } else if (now >= inquiry.arises && nothing_sent_yet(operation) && has_new_answerer(operation)) {
    begin(operation, now);
  }
}

/// Asks only once: a peer that goes on repeating its READY does not hear the question either.
void LatenessCheck::note_waiting(Operation& operation, std::uint32_t times, Time now) {
  Inquiry& inquiry = operation.inquiry;
  if (times < kLongWait || inquiry.by_waiting || inquiry.unanswered > 0) return;
  if (!nothing_sent_yet(operation)) return;
  inquiry.by_waiting = true;
  begin(operation, now);
}

void LatenessCheck::begin(Operation& operation, Time now) {
  if (!operation.asks_if_late || operation.late) return;
  operation.inquiry.to_confirm = true;
  operation.inquiry.gone_out = kNever;
  ask_all(operation, now);
}

void LatenessCheck::ask_all(Operation& operation, Time now) {
  for (const SendMessage& message : operation.last_stage().sends) {
    if (message.slots() > 0 && !message.is_done()) ask(operation, message.peer(), now);
  }
}

void LatenessCheck::ask(Operation& operation, Rank peer, Time now) {
  if (!operation.asks_if_late || operation.late || participants_.is_dead(peer)) return;
  // A rank that stood still meanwhile has not waited for the answers to an older question. It has
  // not waited for those to this one either.
  const Inquiry& inquiry = operation.inquiry;
  const bool is_over = inquiry.unanswered > 0 && now >= inquiry.until;
  if (is_over && now < operation.deadline) stop(operation, now);
  const bool is_new = operation.peers[peer].ask_if_late(now);
  alarm_.no_later_than(now);
  if (!is_new) return;
  if (operation.inquiry.unanswered++ > 0) return;
  operation.inquiry.since = now;
  operation.inquiry.until = patience(operation, now);
}

void LatenessCheck::set_time(Operation& operation, Time arises, Time now) {
  Inquiry& inquiry = operation.inquiry;
  inquiry.arises = inquiry.near_end = arises;
  if (inquiry.is_on()) inquiry.until = patience(operation, now);
}

/// Peers may wait as long as this rank. So the answers of before do not count any more.
void LatenessCheck::extended(Operation& operation, Duration by) {
  Inquiry& inquiry = operation.inquiry;
  inquiry.near_end = after(inquiry.near_end, by);
  if (inquiry.is_on() || operation.late) return;
  inquiry.arises = std::max(inquiry.near_end, inquiry.rests_until);
  inquiry.not_begun = 0;
}

void LatenessCheck::end_stage(Operation& operation, Time now) {
  operation.inquiry.arises = std::min(operation.inquiry.arises, now);
  look(operation, now);
}

void LatenessCheck::answered(Operation& operation, Rank peer, Time now) {
  if (!operation.peers[peer].end_question()) return;
  Inquiry& inquiry = operation.inquiry;
  if (--inquiry.unanswered > 0) return;
  inquiry.until = patience(operation, now);  // for what goes out now
  inquiry.rests_until = after(now, operation.grace / 2);
  // Beyond the end this rank asks no more: the peers would ask one another without end.
  const Time again = std::max(inquiry.rests_until, inquiry.near_end);
  inquiry.arises = again < operation.last_stage().end ? again : kNever;
  alarm_.no_later_than(now);
}

void LatenessCheck::note_answer(const TagState& tag_state, Operation& operation,
                                const tarpon_header& header, Time now) {
  if (operation.inquiry.unanswered == 0 || header.echo_us == 0) return;
  if (before(operation.number, tag_state.closed_below_of[header.sender])) return;  // CLOSED answers
  const std::uint32_t since = microseconds(operation.inquiry.since);
  if (static_cast<std::int32_t>(header.echo_us - since) < 0) return;  // it left too early
  answered(operation, header.sender, now);
}

Time LatenessCheck::run(Operation& operation, Time now) {
  Inquiry& inquiry = operation.inquiry;
  if (inquiry.to_confirm) look(operation, now);
  if (!inquiry.is_on()) return kNever;
  if (now >= inquiry.until) {
    stop(operation, now);
    return kNever;
  }
  const bool waits = inquiry.to_confirm && inquiry.unanswered == 0 && inquiry.gone_out != kNever;
  return waits ? std::min(inquiry.until, inquiry.gone_out + operation.gap_delay) : inquiry.until;
}

/// A peer that had not begun could not answer. If it begins later, one more question follows at the
/// end of the stage; until then the stage may go out.
void LatenessCheck::stop(Operation& operation, Time now) {
  Inquiry& inquiry = operation.inquiry;
  const bool was_early = inquiry.since < inquiry.near_end && inquiry.near_end != kNever;
  inquiry.not_begun = 0;
  for (Rank peer = 0; peer < operation.peers.size(); ++peer) {
    const PeerExchange& exchange = operation.peers[peer];
    if (was_early && exchange.is_asked_if_late() && !exchange.heard())
      inquiry.not_begun |= 1ull << peer;
    answered(operation, peer, now);
  }
  inquiry.to_confirm = false;
  inquiry.arises = inquiry.not_begun != 0 ? operation.last_stage().end : kNever;
}

bool LatenessCheck::awaits_answers(Operation& operation, Time now) {
  if (now >= operation.deadline) return false;
  look(operation, now);
  return operation.inquiry.is_on();
}

}  // namespace tarpon
