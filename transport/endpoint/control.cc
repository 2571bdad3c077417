// Packets in: everything but DATA.
#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

/// Copies the ranges of a REPAIR, cut at `limit`; ones out of order are left out, so that no slot
/// is asked for twice. Returns their number.
std::uint32_t read_ranges(std::span<const std::byte> payload, std::uint32_t limit,
                          std::span<tarpon_range, kMaxRepairRanges> out) {
  std::uint32_t count = 0;
  std::uint32_t asked = 0;
  const std::size_t ranges = std::min(payload.size() / sizeof(tarpon_range), kMaxRepairRanges);
  for (std::size_t i = 0; i < ranges; ++i) {
    tarpon_range range;
    std::memcpy(&range, payload.data() + i * sizeof range, sizeof range);
    if (range.first >= limit || range.first < asked) continue;
    range.count = std::min(range.count, limit - range.first);
    asked = range.first + range.count;
    if (range.count > 0) out[count++] = range;
  }
  return count;
}

/// `max_entries`: of a HEARTBEAT, whose answer has as many.
bool well_formed(const tarpon_header& header, std::size_t payload_bytes, std::size_t max_entries) {
  if (header.type == TARPON_READY) return payload_bytes == sizeof(tarpon_ready);
  if (header.type == TARPON_REPAIR) return payload_bytes % sizeof(tarpon_range) == 0;
  if (header.type == TARPON_ABORT) {
    return header.slot < TARPON_ABORT_END && payload_bytes == 0;
  }
  if (header.type == TARPON_HEARTBEAT) {
    return header.slot < TARPON_HEARTBEAT_END && payload_bytes % sizeof(tarpon_passed) == 0 &&
           payload_bytes <= max_entries * sizeof(tarpon_passed);
  }
  return true;
}

tarpon_ready read_ready(std::span<const std::byte> payload) {
  tarpon_ready ready;
  std::memcpy(&ready, payload.data(), sizeof ready);
  return ready;
}

/// The header's `closed_below` in full: the number nearest to its operation.
std::uint32_t closed_below(const tarpon_header& header) {
  const auto delta =
      static_cast<std::int16_t>(header.closed_below - static_cast<std::uint16_t>(header.operation));
  return header.operation + static_cast<std::uint32_t>(std::int32_t{delta});
}

Signature signature_of(const tarpon_ready& ready) {
  Signature signature;
  std::copy(std::begin(ready.signature), std::end(ready.signature), signature.begin());
  return signature;
}

CallTerms terms_of(const tarpon_ready& ready) {
  CallTerms terms;
  std::copy(std::begin(ready.terms), std::end(ready.terms), terms.begin());
  return terms;
}

}  // namespace

void Endpoint::State::take_control(Time now, const tarpon_header& header,
                                   std::span<const std::byte> payload) {
  if (!well_formed(header, payload.size(), max_entries())) {
    ++counters[DropReason::fields];
    return;
  }
  ++counters.control_in;
  journal.note_in(header, now);
  // Late ones of the search for the size of slots: they hold no clock.
  if (header.type == TARPON_PROBE || header.type == TARPON_PROBE_REPLY) return;
  note_clock(header, now);
  if (header.type == TARPON_HEARTBEAT) return take_heartbeat(header, payload, now);
  Channel* channel = channel_of(header);
  if (channel == nullptr) {
    if (!tags.remembers(header.tag)) return take_early_control(header, payload);
    // Packets of operations that the peer has passed may still be on their way: those say nothing.
    const bool asks = header.type == TARPON_READY || header.type == TARPON_REPAIR;
    if (asks && !clocks.overtaken()) tell_forgotten(header, header.sender);
    return;
  }
  if (header.type == TARPON_ABORT && header.slot == TARPON_ABORT_FORGOTTEN &&
      (header.contributors >> options.rank & 1) != 0) {
    return take_told_forgotten(*channel, header, now);
  }
  if (channel->lost) {
    const bool asks = header.type == TARPON_READY || header.type == TARPON_REPAIR;
    if (asks) tell_forgotten(header, options.rank);
    return;
  }
  Operation* operation = find_open(*channel, header.operation);
  const bool aborts = operation != nullptr && header.type == TARPON_ABORT;
  if (!aborts) note_closed_below(*channel, header, now);
  if (operation == nullptr) {
    return before(header.operation, channel->next_number)
               ? take_past_control(*channel, header, payload)
               : take_early_control(header, payload);
  }
  const bool tells_an_end = header.type == TARPON_CLOSED || header.type == TARPON_ABORT;
  const bool other = other_epoch(*operation, header);
  if (other && !tells_an_end) return refuse_control(DropReason::epoch);
  const bool ready = header.type == TARPON_READY;
  heard_from(*operation, header.sender,
             ready ? std::chrono::microseconds(read_ready(payload).age_us) : Duration{});
  another_has_begun(*operation);
  if (!aborts) lateness.note_answer(*channel, *operation, header, now);
  if (header.type == TARPON_CLOSED) {
    take_marks(*operation, marks_in(header));
    // What it had of whom speaks of another operation than this one.
    return other ? nothing_from(*operation, header.sender) : take_closed(*operation, header, now);
  }
  if (header.type == TARPON_ABORT) {
    take_abort(*operation, header.sender, header.slot, blamed_by(header), now);
    // Only now: the stages that wait for nobody else close by it, which looks like a result.
    return note_closed_below(*channel, header, now);
  }
  if (ready) return take_ready(*operation, header, payload, now);
  if (header.signature != operation->signature_hash) {
    refuse_control(DropReason::mismatch);
    return tell_mismatch(*operation, header.sender, nullptr, now);
  }
  take_marks(*operation, marks_in(header));
  if (header.stage >= operation->stage_count) return refuse_control(DropReason::unexpected);
  const SendMessage* message = operation->stages[header.stage].send_to(header.sender);
  if (message != nullptr && header.slot == TARPON_CREDIT_COMPLETE &&
      message->next < message->slots) {
    return refuse_control(DropReason::unexpected);  // it cannot have what was never sent
  }
  apply_grant(*operation, header.stage, header.sender, header.slot);
  if (header.type != TARPON_REPAIR) return;
  if (operation->late) return tell_void(*operation, header.sender);
  apply_repair(*operation, header, payload);
}

/// For what was counted as applied on its way in.
void Endpoint::State::refuse_control(DropReason reason) {
  --counters.control_in;
  ++counters[reason];
}

void Endpoint::State::take_ready(Operation& operation, const tarpon_header& header,
                                 std::span<const std::byte> payload, Time now) {
  const tarpon_ready ready = read_ready(payload);
  const Signature theirs = signature_of(ready);
  const bool asks = header.slot > 0 && header.slot != TARPON_READY_ANSWER;
  if (theirs != operation.signature) {
    if (asks) operation.peers[header.sender].mismatch_answered = false;
    return tell_mismatch(operation, header.sender, &theirs, now);
  }
  take_marks(operation, marks_in(header));
  if (header.slot != TARPON_READY_ANSWER) operation.peers[header.sender].terms = terms_of(ready);
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    // It asks for what it needs; what it has, it confirms by CREDIT.
    if (ready.grant[i] != TARPON_CREDIT_COMPLETE)
      apply_grant(operation, i, header.sender, ready.grant[i]);
  }
  if (!asks) return;
  if (operation.forwards) receiver.confirm_again(operation, header.sender);
  lateness.note_waiting(operation, header.slot, now);
  // A repeated READY says that the peer has heard nothing of us. One CREDIT answers all READYs that
  // have come before it leaves. A rank that stood still finds many of them.
  PeerView& view = operation.peers[header.sender];
  if (view.answer_queued) return;
  view.answer_queued = control.push(ControlDue{.type = TARPON_CREDIT,
                                               .stage = 0,
                                               .peer = header.sender,
                                               .tag = header.tag,
                                               .operation = header.operation,
                                               .slot = operation.unasked,
                                               .signature_hash = operation.signature_hash});
}

/// The ranks to blame ride along when an ABORT is passed on.
std::uint64_t Endpoint::State::blamed_by(const tarpon_header& abort) const {
  const std::uint64_t everybody = ~0ull >> (64 - options.world_size);
  const std::uint64_t named = abort.contributors & everybody;
  return named != 0 ? named : 1ull << abort.sender;
}

void Endpoint::State::take_abort(Operation& operation, Rank from, std::uint32_t reason,
                                 std::uint64_t ranks, Time now) {
  // A late rank costs a bounded operation that rank's part and no more.
  if (operation.bounded && reason == TARPON_ABORT_EXPIRED) {
    const auto late = static_cast<Rank>(std::countr_zero(ranks));
    operation.peers[late].never_began = true;
    lateness.answered(operation, late, now);
    return peer_passed(operation, late, true, now);
  }
  Event event;
  event.kind = Event::Kind::aborted;
  event.peer = from;
  event.reason = reason;
  event.ranks = ranks;
  event.begun_late = operation.begun_late;
  tell(operation, event);
}

/// Of an operation that is not open here yet. All but READY and ABORT comes again once it is.
void Endpoint::State::take_early_control(const tarpon_header& header,
                                         std::span<const std::byte> payload) {
  Channel* channel = tags.find(header.tag);
  const std::uint32_t lowest = tags.lowest_open(header.tag);
  if (header.operation - lowest >= options.window) {
    if (header.type == TARPON_ABORT && channel != nullptr) {
      NumberRange& known = channel->early_aborts_of[header.sender];
      const bool over = !before(lowest, known.end);  // all that it holds
      if (over || before(header.operation, known.first)) known.first = header.operation;
      if (!before(header.operation, known.end)) known.end = header.operation + 1;
    }
    return refuse_control(DropReason::outside_window);
  }
  if (header.type != TARPON_READY && header.type != TARPON_ABORT) return;
  if (header.type == TARPON_ABORT) {
    const bool kept = early.abort(header.tag, header.operation, header.sender, header.slot,
                                  blamed_by(header), latest);
    if (!kept) refuse_control(DropReason::early_overrun);
    return;
  }
  EarlyOperation::FromPeer* const known =
      early.from(header.tag, header.operation, header.sender, latest);
  if (known == nullptr) return refuse_control(DropReason::early_overrun);
  EarlyOperation::FromPeer& from = *known;
  const tarpon_ready ready = read_ready(payload);
  from.announced = true;
  from.terms = terms_of(ready);
  from.begun = std::min(from.begun, begun_at_sender(std::chrono::microseconds(ready.age_us)));
  if (header.slot != TARPON_READY_ANSWER) from.readies = std::max(from.readies, header.slot);
  from.marks = marks_in(header);
  from.epoch = header.epoch;
  from.signature = signature_of(ready);
  std::copy(std::begin(ready.grant), std::end(ready.grant), from.grants.begin());
}

/// Of an operation that is over here.
void Endpoint::State::take_past_control(Channel& channel, const tarpon_header& header,
                                        std::span<const std::byte> payload) {
  if (header.type == TARPON_READY) {
    // Two that disagree and have closed would answer each other's answers for ever.
    if (header.slot == TARPON_READY_ANSWER) return;
    const PastOperation* past = channel.find_past(header.operation);
    answer_past(channel, header,
                past != nullptr && past->epoch.number == header.epoch &&
                    past->signature != signature_of(read_ready(payload)),
                0);
  } else if (header.type == TARPON_REPAIR) {
    apply_repair_of_closed(channel, header, payload);
  }
}

/// Of a closed operation: of whom there is nothing here, or who began its abort. What is not
/// remembered `peer` comes to late.
std::uint64_t Endpoint::State::missed(Channel& channel, std::uint32_t number, Rank peer) {
  if (number > channel.next_number) return 0;  // never was; nobody asks across the numbers' end
  if (const PastOperation* past = channel.find_past(number)) return past->ranks;
  if (const Channel::Aborted* run = channel.find_aborted(number)) return run->ranks;
  const std::uint64_t own = tags.find_kept(channel, number) == nullptr ? 1ull << options.rank : 0;
  return own | 1ull << peer;
}

/// Tells a peer that is still at an operation that is over here what has become of it.
/// `other_signature`: it runs something else under this number. `gone`: of these ranks nothing is
/// to be had, besides those that were absent.
void Endpoint::State::answer_past(Channel& channel, const tarpon_header& header,
                                  bool other_signature, std::uint64_t gone) {
  // Who has closed it too has nothing to learn.
  if (before(header.operation, closed_below(header))) return;
  // It had passed this operation before, and no longer remembers.
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
    answer.slot = TARPON_READY_ANSWER;
  } else if (aborted) {
    answer.type = TARPON_ABORT;
    answer.slot = past != nullptr ? past->reason : channel.find_aborted(header.operation)->reason;
  }
  if (answer.type != TARPON_READY)
    answer.contributors = missed(channel, header.operation, header.sender);
  if (answer.type == TARPON_CLOSED) answer.contributors |= gone;
  control.push(answer);
  if (answer.type != TARPON_CLOSED || past == nullptr || past->marks.ranks == 0) return;
  // CLOSED says that a rank has set its mark; a CREDIT of nothing says which.
  control.push(ControlDue{.type = TARPON_CREDIT,
                          .peer = header.sender,
                          .tag = header.tag,
                          .operation = header.operation,
                          .signature_hash = signature_hash(past->signature)});
}

void Endpoint::State::tell_mismatch(Operation& operation, Rank peer, const Signature* theirs,
                                    Time now) {
  PeerView& view = operation.peers[peer];
  view.disagrees = true;
  if (!view.mismatch_answered) {
    // The peer needs our fields as we need its: READY carries them.
    view.mismatch_answered = true;
    control.push(ControlDue{
        .type = TARPON_READY, .peer = peer, .tag = operation.tag, .operation = operation.number});
  }
  if (view.mismatch_told) return;
  if (theirs == nullptr) {  // a repeated READY is answered: it asks for the peer's fields
    if (view.ready_at != kNever) return;
    view.readies = std::max(1u, view.readies);
    view.ready_at = now + operation.quiet_delay;
    timer = std::min(timer, view.ready_at);
    return;
  }
  view.mismatch_told = true;
  view.ready_at = kNever;
  Event event;
  event.kind = Event::Kind::mismatch;
  event.peer = peer;
  event.signature = *theirs;
  tell(operation, event);
}

void Endpoint::State::note_closed_below(Channel& channel, const tarpon_header& header, Time now) {
  const std::uint32_t below = closed_below(header);
  if (!before(channel.closed_below_of[header.sender], below)) return;
  note_passed(channel, header.sender, below, proves_end(channel, header), now);
}

/// `peer` says that all its operations below `below` are closed. Beyond the window that may be a
/// lie, or a broken header: it has to be `proven` by an answer to a question of this rank.
void Endpoint::State::note_passed(Channel& channel, Rank peer, std::uint32_t below, bool proven,
                                  Time now) {
  std::uint32_t& known = channel.closed_below_of[peer];
  if (!before(known, below)) return;
  if (!proven && below - known > options.window) return check_jump(channel, peer, now);
  known = below;
  for (Operation* operation : channel.open) {
    if (before(operation->number, below)) peer_closed(*operation, peer, now);
  }
  release_passed(channel);
}

/// Whether the packet tells the end of the lowest open operation, and left its sender after this
/// rank's latest READY of it did.
bool Endpoint::State::proves_end(Channel& channel, const tarpon_header& header) {
  if (header.type != TARPON_CLOSED && header.type != TARPON_ABORT) return false;
  if (channel.open.empty() || channel.open.front()->number != header.operation) return false;
  const PeerView& view = channel.open.front()->peers[header.sender];
  return view.readies > 0 && PeerClocks::echoes(header, view.ready_us, latest);
}

/// Asks `peer` for the end of the lowest open operation.
void Endpoint::State::check_jump(Channel& channel, Rank peer, Time now) {
  if (channel.open.empty()) return;  // the next operation asks, or a HEARTBEAT
  const Operation& operation = *channel.open.front();
  PeerView& view = channel.open.front()->peers[peer];
  if (view.jump_checked != Time{} && now < view.jump_checked + operation.quiet_delay) return;
  view.jump_checked = now;
  view.readies = std::max(1u, view.readies);
  view.ready_at = now;
  timer = std::min(timer, now);
}

/// Nothing more is to be sent to `peer`, and what it owes comes when asked for, or never. `gone`:
/// without a result.
void Endpoint::State::peer_passed(Operation& operation, Rank peer, bool gone, Time now) {
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    apply_grant(operation, i, peer, TARPON_CREDIT_COMPLETE);
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr || stage.closed || message->final || message->delivered()) continue;
    // A bounded operation keeps nothing of its first stages.
    if (!gone && message->repair_below > 0 && (i > 0 || !operation.bounded)) {
      message->presume_all_lost(now - operation.gap_delay);
      timer = std::min(timer, now);
      continue;
    }
    // Of a later stage it sent just before it closed: that may come behind this news.
    if (!gone && i > 0) continue;
    receiver.give_up(operation, stage, *message, latest);
  }
}

void Endpoint::State::apply_grant(Operation& operation, std::uint8_t stage_number, Rank peer,
                                  std::uint32_t grant) {
  Stage& stage = operation.stages[stage_number];
  SendMessage* message = stage.send_to(peer);
  if (message == nullptr) return;
  if (grant != TARPON_CREDIT_COMPLETE) {
    message->grant = std::max(message->grant, grant);
    return;
  }
  if (message->done) return;
  message->done = true;
  if (!stage.acknowledge || --stage.unacknowledged != 0) return;
  Event event;
  event.kind = Event::Kind::acknowledged;
  event.stage = stage_number;
  tell(operation, event);
}

void Endpoint::State::apply_repair(Operation& operation, const tarpon_header& header,
                                   std::span<const std::byte> payload) {
  SendMessage* message = operation.stages[header.stage].send_to(header.sender);
  if (message == nullptr) return;
  // Slots that were never sent need no repair.
  message->repair_count = read_ranges(payload, message->next, message->repairs);
  ++message->requests;
}

void Endpoint::State::apply_repair_of_closed(Channel& channel, const tarpon_header& header,
                                             std::span<const std::byte> payload) {
  const KeptResult* kept = tags.find_kept(channel, header.operation);
  if (kept == nullptr || kept->data->stage != header.stage ||
      kept->signature_hash != header.signature) {
    refuse_control(DropReason::unexpected);
    if (header.operation > channel.next_number) return;  // never was, as in missed()
    // Nobody has it any more; without an answer the peer would ask until its bound or deadline.
    const PastOperation* past = channel.find_past(header.operation);
    // What this rank sent of its last stage before it closed has had its time to come.
    const std::uint64_t own = header.stage > 0 ? 1ull << options.rank : 0;
    answer_past(channel, header,
                past != nullptr && past->epoch.number == header.epoch &&
                    signature_hash(past->signature) != header.signature,
                own);
    return;
  }
  RetainedDue asked{.peer = header.sender, .tag = header.tag, .number = header.operation};
  asked.count = read_ranges(payload, static_cast<std::uint32_t>(kept->data->contributors.size()),
                            asked.ranges);
  control.push(asked);
}

}  // namespace tarpon
