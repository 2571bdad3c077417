#include "transport/operation/open_operation.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include "transport/wire/mark_flags.h"
#include "transport/wire/train.h"

namespace tarpon {
namespace {

constexpr Duration kLeastPatience = 1ms;  // a wake-up may take as long

}  // namespace

// -- the begin -----------------------------------------------------------------------------------

void OpenOperation::begin(TagState& tag_state, Time now) {
  const Rank self = parts_.options.rank;
  const std::uint32_t ranks = parts_.options.world_size;
  tag_state_ = &tag_state;
  parts_.granter.opened(operation_, now);
  // Short round trips need no long waits.
  const Duration patience = std::max(kLeastPatience, parts_.granter.inflow().timeout());
  operation_.gap_delay = std::min(operation_.gap_delay, patience);
  operation_.quiet_delay = std::min(operation_.quiet_delay, 2 * patience);
  operation_.silence_delay = std::min(operation_.silence_delay, 2 * patience);
  for (Stage& stage : stages()) {
    for (SendMessage& send : stage.sends) send.grant(parts_.granter.unasked_at(send.peer()));
  }
  parts_.announcer.begin(operation_, parts_.granter.inflow().advertised() != 0, now);
  const auto passed = [&](Rank peer) {
    return peer != self && before(operation_.number, tag_state.closed_below_of[peer]);
  };
  for (Rank peer = 0; peer < ranks; ++peer) {
    const bool aborted = tag_state.early_aborts_of[peer].contains(operation_.number);
    operation_.begun_late |= aborted || (passed(peer) && !parts_.participants.is_dead(peer));
  }
  // A peer that has closed the operation has none of our data, even if its packets are parked here.
  for (Rank peer = 0; peer < ranks && operation_.asks_if_late; ++peer) {
    if (peer != self && parts_.early.has_ended(tag_state, peer, operation_.number)) {
      become_late(peer, now);
    }
  }
  const std::uint32_t repeated = adopt_early(now);
  for (Rank peer = 0; peer < ranks; ++peer) {
    if (peer != self && parts_.participants.excludes(peer, operation_.tag, operation_.number)) {
      leave_out(peer, true, now);
      continue;
    }
    if (!passed(peer)) continue;
    PeerExchange& exchange = operation_.peers[peer];
    if (!exchange.heard()) exchange.set_begin({now, kUnknownAge});
    // A peer that has passed an exact operation before this rank begins it has given it up. Its
    // answer to READY says why.
    if (operation_.bounded) hear(peer, {}, now);
    peer_closed(peer, now);
  }
  for (Rank peer = 0; peer < ranks && operation_.bounded; ++peer) {
    const bool rejoins = parts_.participants.is_rejoining(peer) && !operation_.peers[peer].heard();
    if (parts_.participants.is_silent(peer) || rejoins) leave_out(peer, false, now);
  }
  // Stages in which nothing is to come are over at once.
  for (Stage& stage : stages()) {
    if (stage.open_receives == 0 && !stage.awaits_caller && !stage.closed) {
      parts_.receiver.close_stage(operation_, stage, Closing::complete, now);
    }
  }
  another_has_begun(now);
  parts_.lateness.note_waiting(operation_, repeated, now);
  parts_.alarm.no_later_than(now);
}

/// Applies what came early. Returns the largest number of times that a peer has repeated its READY.
std::uint32_t OpenOperation::adopt_early(Time now) {
  EarlyPackets& early = parts_.early.packets();
  std::uint32_t repeated = 0;
  if (early.take_refused(operation_.tag, operation_.number)) {
    repeated = kAllSlots;  // unknown
    for (Rank peer = 0; peer < parts_.options.world_size; ++peer) ask_again(peer);
  }
  const std::optional<EarlyOperation> taken = early.take(operation_.tag, operation_.number);
  if (!taken) return repeated;
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    repeated = std::max(repeated, taken->peers[peer].readies);
    adopt_from(peer, taken->peers[peer], now);
  }
  for (const std::uint32_t cell : taken->cells) {
    const std::span<const std::byte> packet = early.packet(cell);
    tarpon_header header;
    std::memcpy(&header, packet.data(), sizeof header);
    if (is_other_epoch(header, now)) {
      ++parts_.counters[DropReason::epoch];
    } else {
      hear(header.sender, {}, now);
      const RxPacket one{.data = packet.data(),
                         .length = static_cast<std::uint32_t>(packet.size()),
                         .source = header.sender};
      on_data(header, {&one, 1}, now);
    }
    early.release(cell);
  }
  parts_.receiver.give_credit(parts_.open, now);
  return repeated;
}

/// Applies what `peer` said before this rank began.
void OpenOperation::adopt_from(Rank peer, const EarlyOperation::FromPeer& from, Time now) {
  PeerExchange& exchange = operation_.peers[peer];
  if (from.overrun) ask_again(peer);
  const bool announced =
      from.announced && (!operation_.bounded || from.epoch == operation_.epoch.number);
  if (from.announced || from.aborted || from.parked > 0) {
    exchange.set_begin(
        {std::min(from.begun, now), from.begun == kNever ? kUnknownAge : Duration{}, from.read});
  }
  if (announced) exchange.set_terms(from.terms);
  if (announced || from.aborted) hear(peer, {}, now);
  operation_.begun_late |= from.aborted;
  if (from.aborted) on_abort(peer, from.abort_reason, from.abort_ranks, now);
  if (!announced) return;
  if (from.signature != operation_.signature) {
    take_mismatch(peer, &from.signature, false, now);
  } else {
    take_marks(from.marks);
  }
  take_grants(from.grants, peer, now);
}

/// Allows dropped early packets from `peer` to be asked for again, in bounded mode too: this rank
/// lost them itself.
void OpenOperation::ask_again(Rank peer) {
  for (Stage& stage : stages()) {
    ReceiveMessage* const message = stage.receive_from(peer);
    if (message != nullptr) message->allow_repair(parts_.options.initial_credit);
  }
}

// -- packets -------------------------------------------------------------------------------------

bool OpenOperation::admit(const tarpon_header& header, Time now) {
  if (is_other_epoch(header, now)) {
    ++parts_.counters[DropReason::epoch];
    return false;
  }
  hear(header.sender, {}, now);
  another_has_begun(now);
  parts_.lateness.note_answer(*tag_state_, operation_, header, now);
  if (header.stage_time != 0) operation_.peers[header.sender].set_stage_time(header.stage_time);
  return true;
}

std::size_t OpenOperation::on_data(const tarpon_header& header, std::span<const RxPacket> packets,
                                   Time now) {
  if (header.signature != operation_.signature_hash) {
    ++parts_.counters[DropReason::mismatch];
    take_mismatch(header.sender, nullptr, false, now);
    return 1;
  }
  if ((header.flags & TARPON_FLAG_NONFINITE) != 0) take_marks(marks_in(header, everybody()));
  const std::span<const RxPacket> train = train_of(packets, header.slot, parts_.options.integrity);
  parts_.receiver.receive(operation_, header, train, now);
  return train.size();
}

void OpenOperation::on_control(const ControlPacket& packet, Time now) {
  const tarpon_header& header = packet.header();
  const bool tells_an_end = packet.type() == TARPON_CLOSED || packet.type() == TARPON_ABORT;
  const bool other = is_other_epoch(header, now);
  if (other && !tells_an_end) return parts_.counters.refuse_control(DropReason::epoch);
  const bool ready = packet.type() == TARPON_READY;
  hear(packet.sender(), ready ? std::chrono::microseconds(packet.ready().age_us) : Duration{}, now);
  another_has_begun(now);
  if (packet.type() == TARPON_ABORT) {
    return on_abort(packet.sender(), packet.reason(), packet.blamed(everybody()), now);
  }
  parts_.lateness.note_answer(*tag_state_, operation_, header, now);
  if (ready) return take_ready(packet, now);
  if (packet.type() != TARPON_CLOSED) return take_feedback(packet, now);
  take_marks(marks_in(header, everybody()));
  // The absent ranks in a CLOSED of another epoch belong to a different operation.
  return other ? nothing_from(packet.sender(), now) : take_closed(packet, now);
}

/// Whether the packet belongs to this operation, a bounded one, in another epoch. Reports a later
/// epoch once; from then on there is nothing to fetch. Exact operations have no epoch.
bool OpenOperation::is_other_epoch(const tarpon_header& header, Time now) {
  if (!operation_.bounded || header.epoch == operation_.epoch.number) return false;
  operation_.peers[header.sender].set_other_epoch();  // nothing of it can be used here
  if (!later_epoch(header.epoch, operation_.latest_epoch)) return true;
  operation_.latest_epoch = header.epoch;
  Event event;
  event.kind = Event::Kind::epoch;
  event.peer = header.sender;
  event.epoch = {header.epoch, static_cast<std::uint8_t>(header.incast_codec >> TARPON_CODEC_SHIFT),
                 header.stride};
  tell(event, now);
  Stage& last = operation_.last_stage();
  if (operation_.late && !last.closed) {
    parts_.receiver.close_stage(operation_, last, Closing::given_up, now);
  }
  return true;
}

void OpenOperation::note_begun(Rank peer, const Signature& theirs, Time now) {
  hear(peer, {}, now);
  another_has_begun(now);
  if (theirs != operation_.signature) take_mismatch(peer, &theirs, false, now);
}

/// A packet of `peer` has come; the operation began there `before` ago, when the packet left.
void OpenOperation::hear(Rank peer, Duration before, Time now) {
  PeerExchange& exchange = operation_.peers[peer];
  // DATA may have overtaken the READY that tells how long the peer encoded.
  const bool corrects = before > Duration::zero() && !operation_.clock.has_started();
  exchange.note_begin({begun_before(before, now), parts_.clocks.age()}, corrects);
  if (!exchange.note_heard(operation_.late)) return;
  parts_.journal.note(RecordKind::first_packet, operation_, peer, now);
  operation_.clock.note_begun();
  parts_.granter.heard(operation_, peer);
  parts_.announcer.heard(operation_, peer);
  // The peer's first packet may have overtaken our announcement: its grants still have to go out.
  for (std::uint8_t i = 0; i < operation_.stage_count; ++i) {
    const ReceiveMessage* message = operation_.stages[i].receive_from(peer);
    if (message == nullptr || message->credit().granted() <= operation_.unasked) continue;
    const std::uint32_t granted = message->credit().granted();
    parts_.journal.note(RecordKind::credit, operation_, peer, now, granted, i);
    parts_.receiver.queue_credit(operation_, i, peer, granted);
  }
}

void OpenOperation::take_ready(const ControlPacket& packet, Time now) {
  const Rank peer = packet.sender();
  const tarpon_ready ready = packet.ready();
  const Signature theirs = signature_of(ready);
  const bool asks = packet.repeats() > 0;
  PeerExchange& exchange = operation_.peers[peer];
  if (theirs != operation_.signature) {
    return take_mismatch(peer, &theirs, asks, now);
  }
  take_marks(marks_in(packet.header(), everybody()));
  if (!packet.is_mismatch_answer()) exchange.set_terms(terms_of(ready));
  take_grants(ready.grant, peer, now);
  if (!asks) return;
  if (operation_.awaits_confirmations) parts_.receiver.confirm_again(operation_, peer);
  parts_.lateness.note_waiting(operation_, packet.repeats(), now);
  // A repeated READY says that the peer has heard nothing of us. One CREDIT answers all READYs that
  // have come before it leaves. A rank that stood still finds many of them.
  if (exchange.answer_is_queued()) return;
  exchange.set_answer_queued(
      parts_.control.push(ControlDue{.type = TARPON_CREDIT,
                                     .stage = 0,
                                     .peer = peer,
                                     .tag = operation_.tag,
                                     .operation = operation_.number,
                                     .grant = operation_.unasked,
                                     .signature_hash = operation_.signature_hash}));
}

/// Stops waiting for ranks whose data the sender of CLOSED never received, and for that sender
/// itself if it has no result. Where ranks forward, CLOSED stands for the sender's confirmations.
void OpenOperation::take_closed(const ControlPacket& packet, Time now) {
  operation_.peers[packet.sender()].ready().stop();
  parts_.lateness.answered(operation_, packet.sender(), now);
  for (std::uint8_t i = 0; i < operation_.stage_count && operation_.awaits_confirmations; ++i) {
    take_grant(i, packet.sender(), TARPON_CREDIT_COMPLETE, now);
  }
  if (!operation_.bounded) return;
  const std::uint64_t absent = packet.absent();
  if ((absent >> parts_.options.rank & 1) != 0) become_late(packet.sender(), now);
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if ((absent >> peer & 1) == 0) continue;
    for (Stage& stage : stages()) {
      ReceiveMessage* message = stage.receive_from(peer);
      if (message == nullptr || stage.closed || !message->is_expected()) continue;
      const bool here = message->received() > 0;
      if (here && peer != packet.sender()) continue;
      parts_.receiver.give_up(operation_, stage, *message, now);
    }
  }
}

/// Takes a CREDIT or REPAIR.
void OpenOperation::take_feedback(const ControlPacket& packet, Time now) {
  const tarpon_header& header = packet.header();
  if (header.signature != operation_.signature_hash) {
    parts_.counters.refuse_control(DropReason::mismatch);
    return take_mismatch(packet.sender(), nullptr, false, now);
  }
  take_marks(marks_in(header, everybody()));
  if (header.stage >= operation_.stage_count) {
    return parts_.counters.refuse_control(DropReason::unexpected);
  }
  Stage& stage = operation_.stages[header.stage];
  SendMessage* const message = stage.send_to(packet.sender());
  const bool confirms_unsent = operation_.bounded && operation_.awaits_confirmations;
  if (message != nullptr && packet.confirms() && !confirms_unsent &&
      std::max(message->next(), stage.multicast.next) < message->slots()) {
    // The peer cannot have received slots that were never sent.
    return parts_.counters.refuse_control(DropReason::unexpected);
  }
  take_grant(header.stage, packet.sender(), packet.grant(), now);
  if (packet.type() != TARPON_REPAIR) return;
  if (operation_.late) return tell_void(packet.sender());
  if (message != nullptr) message->take_request(packet);
}

void OpenOperation::on_abort(Rank from, std::uint32_t reason, std::uint64_t ranks, Time now) {
  // A late rank costs a bounded operation only the data of that rank.
  if (operation_.bounded && reason == TARPON_ABORT_EXPIRED) {
    const auto late = static_cast<Rank>(std::countr_zero(ranks));
    operation_.peers[late].set_never_began();
    parts_.lateness.answered(operation_, late, now);
    return peer_passed(late, true, now);
  }
  Event event;
  event.kind = Event::Kind::aborted;
  event.peer = from;
  event.reason = reason;
  event.ranks = ranks;
  event.begun_late = operation_.begun_late;
  tell(event, now);
}

/// The signature of `peer` differs. `theirs`: nullptr where only its hash is known. `asks`: the
/// peer asks for this rank's fields.
void OpenOperation::take_mismatch(Rank peer, const Signature* theirs, bool asks, Time now) {
  PeerExchange& exchange = operation_.peers[peer];
  if (exchange.note_mismatch(asks)) {
    parts_.control.push(ControlDue{
        .type = TARPON_READY, .peer = peer, .tag = operation_.tag, .operation = operation_.number});
  }
  if (exchange.mismatch_is_told()) return;
  if (theirs == nullptr) {  // a repeated READY is answered: it asks for the peer's fields
    const Time at = now + operation_.quiet_delay;
    if (exchange.ready().ask_if_none_is_due(at)) parts_.alarm.no_later_than(at);
    return;
  }
  exchange.set_mismatch_told();
  Event event;
  event.kind = Event::Kind::mismatch;
  event.peer = peer;
  event.signature = *theirs;
  tell(event, now);
}

/// Bounded: takes news of marks. A rank that hears a new name passes it on at once.
void OpenOperation::take_marks(const Marks& said) {
  if (!operation_.bounded || !said.heard) return;
  operation_.marks.heard = true;
  if ((said.ranks & ~operation_.marks.ranks) == 0) return;
  operation_.marks.ranks |= said.ranks;
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if (peer == parts_.options.rank) continue;
    parts_.control.push(ControlDue{.type = TARPON_CREDIT,
                                   .peer = peer,
                                   .tag = operation_.tag,
                                   .operation = operation_.number,
                                   .grant = operation_.unasked,
                                   .signature_hash = operation_.signature_hash});
  }
}

void OpenOperation::take_grant(std::uint8_t number, Rank peer, std::uint32_t grant, Time now) {
  Stage& stage = operation_.stages[number];
  SendMessage* message = stage.send_to(peer);
  if (message == nullptr) return;
  if (grant != TARPON_CREDIT_COMPLETE) return message->grant(grant);
  if (!message->finish() || !stage.acknowledge || --stage.unacknowledged != 0) return;
  Event event;
  event.kind = Event::Kind::acknowledged;
  event.stage = number;
  tell(event, now);
}

/// Takes the grants of a READY. By READY a peer asks for what it needs; it confirms what it has by
/// CREDIT.
void OpenOperation::take_grants(std::span<const std::uint32_t> grants, Rank peer, Time now) {
  for (std::uint8_t i = 0; i < operation_.stage_count; ++i) {
    if (grants[i] != TARPON_CREDIT_COMPLETE) take_grant(i, peer, grants[i], now);
  }
}

// -- time ----------------------------------------------------------------------------------------

Time OpenOperation::on_time(Time now) {
  Time next = parts_.lateness.run(operation_, now);
  if (operation_.bounded && operation_.clock.has_started()) {
    next = std::min(next, parts_.bounds.run(operation_, now));
  }
  if (!operation_.deadline_told) {
    if (now >= operation_.deadline) {
      operation_.deadline_told = true;
      Event event;
      event.kind = Event::Kind::deadline;
      tell(event, now);
      return kNever;
    }
    next = std::min(next, operation_.deadline);
  }
  next = std::min(next, parts_.announcer.run(operation_, *tag_state_, now));
  for (std::uint8_t i = 0; i < operation_.stage_count; ++i) {
    Stage& stage = operation_.stages[i];
    if (stage.closed) continue;
    for (ReceiveMessage& message : stage.receives) {
      if (!operation_.peers[message.peer()].heard()) continue;
      next = std::min(next, parts_.receiver.time_message(operation_, i, message, now));
    }
  }
  return next;
}

void OpenOperation::set_ends(const StageEnds& ends, Time now) {
  parts_.bounds.set(operation_, ends, now);
  if (operation_.late || !operation_.asks_if_late) return;
  if (operation_.opened > ends.lateness.late_after) return become_late(parts_.options.rank, now);
  // If the packet that started this clock waited here before it was read, the clocks of other ranks
  // started earlier. If nothing tells how old that packet was, they may have started when this rank
  // submitted.
  const BeginClock& clock = operation_.clock;
  const Duration unseen =
      clock.read_after() == kUnknownAge ? clock.started() - operation_.opened : clock.read_after();
  const Time end = operation_.last_stage().end;
  parts_.lateness.set_time(operation_, end - unseen - ends.lateness.notice, now);
}

/// Call it when a rank has begun.
void OpenOperation::another_has_begun(Time now) {
  const std::uint32_t live = parts_.participants.live_in(operation_.tag, operation_.number);
  if (!operation_.clock.is_due(live)) return;
  operation_.clock.start_at_half(operation_.peers, live, parts_.options.rank);
  tell_clock(now);
}

void OpenOperation::fewer_take_part(Time now) {
  const std::uint32_t live = parts_.participants.live_in(operation_.tag, operation_.number);
  if (!operation_.clock.is_due(live)) return;
  operation_.clock.start(now, {});
  tell_clock(now);
}

void OpenOperation::tell_clock(Time now) {
  parts_.alarm.no_later_than(now);
  if (!operation_.bounded) return;
  Event event;
  event.kind = Event::Kind::clock;
  event.at = operation_.clock.started();
  tell(event, now);
}

// -- peers that have ended, or are gone ----------------------------------------------------------

void OpenOperation::peer_closed(Rank peer, Time now) {
  const SendMessage* message = operation_.last_stage().send_to(peer);
  const bool owed = message != nullptr && !message->has_all_left();
  if (owed && !operation_.peers[peer].never_began()) parts_.lateness.ask(operation_, peer, now);
  peer_passed(peer, false, now);
}

/// Handles the end of the operation at `peer`: it gets nothing more, and what it owes comes when
/// asked for, or never. `gone`: the peer has no result.
void OpenOperation::peer_passed(Rank peer, bool gone, Time now) {
  for (std::uint8_t i = 0; i < operation_.stage_count; ++i) {
    Stage& stage = operation_.stages[i];
    take_grant(i, peer, TARPON_CREDIT_COMPLETE, now);
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr || stage.closed || !message->is_expected()) continue;
    // A bounded operation keeps nothing of its first stages.
    if (!gone && message->may_repair() && (i > 0 || !operation_.bounded)) {
      message->arrivals().presume_all_lost(now - operation_.gap_delay);
      parts_.alarm.no_later_than(now);
      continue;
    }
    // The peer sent its part of a later stage just before it closed: that may come after this news.
    if (!gone && i > 0) continue;
    parts_.receiver.give_up(operation_, stage, *message, now);
  }
}

void OpenOperation::leave_out(Rank peer, bool gone, Time now) {
  parts_.lateness.answered(operation_, peer, now);
  operation_.peers[peer].ready().stop();
  for (std::uint8_t i = 0; i < operation_.stage_count; ++i) {
    Stage& stage = operation_.stages[i];
    if (gone) {
      take_grant(i, peer, TARPON_CREDIT_COMPLETE, now);
    } else if (SendMessage* send = stage.send_to(peer)) {
      send->finish();  // not confirmed: the peer may ask for this once it is back
    }
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr) continue;
    message->credit().set_granted(message->slots());  // paced credit is not spent on it
    if (stage.closed || !message->is_expected()) continue;
    parts_.receiver.give_up(operation_, stage, *message, now);
  }
}

void OpenOperation::nothing_from(Rank peer, Time now) {
  operation_.peers[peer].ready().stop();
  parts_.lateness.answered(operation_, peer, now);
  for (Stage& stage : stages()) {
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr || stage.closed || !message->is_expected()) continue;
    parts_.receiver.give_up(operation_, stage, *message, now);
  }
}

void OpenOperation::become_late(Rank peer, Time now) {
  if (!operation_.bounded || operation_.late) return;
  operation_.late = true;
  parts_.lateness.stop(operation_, now);
  if (!operation_.clock.has_started()) {
    operation_.clock.start(now, {});
    tell_clock(now);
  }
  const bool fetches = !stranded(operation_);
  if (fetches) {
    StageBounds::lift_last(operation_);
    Stage& last = operation_.last_stage();
    for (ReceiveMessage& message : last.receives) {
      message.allow_repair(kAllSlots);
    }
  }
  for (Stage& stage : stages()) {
    for (SendMessage& message : stage.sends) message.finish();
    stage.unacknowledged = 0;
    const bool fetched = fetches && &stage == &operation_.last_stage();
    if (!fetched && !stage.closed) {
      parts_.receiver.close_stage(operation_, stage, Closing::given_up, now);
    }
  }
  parts_.announcer.ask_for_ends(operation_, now);
  Event event;
  event.kind = Event::Kind::late;
  event.peer = peer;
  tell(event, now);
}

/// The results that other ranks would pass on do not come. They are fetched from their owners.
void OpenOperation::left_out(Time now) {
  const bool was_late = operation_.late;
  become_late(parts_.options.rank, now);
  Stage& last = operation_.last_stage();
  for (const ReceiveMessage& spare : std::exchange(last.spares, {})) {
    const Rank from = spare.peer();
    const bool absent = parts_.participants.is_silent(from) ||
                        parts_.participants.excludes(from, operation_.tag, operation_.number);
    if (spare.slots() == 0 || absent || stranded(operation_)) continue;
    parts_.receiver.fetch(last, spare);
    operation_.peers[from].ready().ask(now);
  }
  if (!was_late) return;  // else it is told that there is more to fetch
  Event event;
  event.kind = Event::Kind::late;
  event.peer = parts_.options.rank;
  tell(event, now);
}

/// Answers `peer`, which asks for data that this rank, being late, owes to no peer any more.
void OpenOperation::tell_void(Rank peer) {
  parts_.control.push(ControlDue{.type = TARPON_CLOSED,
                                 .peer = peer,
                                 .tag = operation_.tag,
                                 .operation = operation_.number,
                                 .ranks = bit(parts_.options.rank)});
}

}  // namespace tarpon
