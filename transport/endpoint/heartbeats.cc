#include "transport/endpoint/heartbeats.h"

#include <cstring>
#include <utility>
#include <vector>

namespace tarpon {

Heartbeats::Heartbeats(const Parts& parts, std::size_t max_entries)
    : parts_(parts),
      liveness_(parts.options.world_size, parts.options.silent_after),
      news_(parts.options.rank, parts.options.world_size, max_entries, parts.tags,
            parts.participants) {}

void Heartbeats::tell_progress(TagState& tag_state, Time now) {
  news_.rose(tag_state, now);
  parts_.alarm.no_later_than(news_.next());
}

void Heartbeats::run(Time now) {
  news_.run(now, parts_.control);
  check_silence(now);
  parts_.alarm.no_later_than(news_.next());
  if (parts_.options.detects_silence) parts_.alarm.no_later_than(liveness_.next());
}

/// Peers that open operations lack, or wait for. Silent ones are asked until they are heard, so
/// that the next operation can count on them again.
std::uint64_t Heartbeats::lacked_ranks() const {
  std::uint64_t ranks = parts_.participants.silent();
  for (const Operation* operation : parts_.operations.states()) {
    if (operation->awaits_confirmations) ranks |= unconfirmed_by(*operation);
    if (operation->bounded) ranks |= operation->awaited_near;
    for (std::uint32_t i = 0; i < operation->stage_count; ++i) {
      const Stage& stage = operation->stages[i];
      if (stage.closed) continue;
      for (Rank peer = 0; peer < parts_.options.world_size && operation->awaits_confirmations;
           ++peer) {
        const bool excluded = parts_.participants.excludes(peer, operation->tag, operation->number);
        if (peer != parts_.options.rank && !excluded) ranks |= bit(peer);
      }
      for (const ReceiveMessage& message : stage.receives) {
        if (message.is_expected()) ranks |= bit(message.peer());
      }
    }
  }
  return ranks;
}

void Heartbeats::check_silence(Time now) {
  if (!parts_.options.detects_silence || now < liveness_.next()) return;
  std::vector<Time> heard(parts_.options.world_size);
  for (Rank peer = 0; peer < heard.size(); ++peer) heard[peer] = parts_.clocks.heard(peer);
  const Liveness::Findings findings = liveness_.check(now, lacked_ranks(), heard);
  for (Rank peer = 0; peer < heard.size(); ++peer) {
    if ((findings.ask >> peer & 1) != 0) {
      parts_.control.push(HeartbeatDue{peer, TARPON_HEARTBEAT_QUESTION, {}});
    }
    if ((findings.silent >> peer & 1) != 0) set_silent(peer, true, now);
  }
}

void Heartbeats::set_silent(Rank peer, bool silent, Time now) {
  if (!parts_.participants.set_silent(peer, silent)) return;
  Event event;
  event.kind = silent ? Event::Kind::silent : Event::Kind::heard;
  event.peer = peer;
  parts_.journal.tell(event);
  if (!silent) return;
  for (OpenOperation* operation : parts_.operations.all()) {
    if (!operation->state().bounded) continue;
    operation->leave_out(peer, false, now);
    operation->fewer_take_part(now);
  }
  parts_.alarm.no_later_than(now);
}

void Heartbeats::take(const ControlPacket& packet, Time now) {
  const bool is_answer = packet.heartbeat() == TARPON_HEARTBEAT_ANSWER;
  const bool is_question = packet.heartbeat() == TARPON_HEARTBEAT_QUESTION;
  const bool proven = is_answer && parts_.clocks.answers(packet.header(), now);
  TagHistory& tags = parts_.tags;
  std::vector<NextNumber> answer;
  for (std::size_t i = 0; i < packet.passed_count(); ++i) {
    const tarpon_passed passed = packet.passed(i);
    if (TagState* const tag_state = tags.find(passed.tag)) {
      parts_.passed.note(*tag_state, packet.sender(), passed.closed_below, proven, now);
    }
    if (is_question && tags.remembers(passed.tag)) {
      // This rank asks for nothing of a lost tag.
      answer.push_back({passed.tag, tags.is_lost(passed.tag) ? passed.closed_below
                                                             : tags.lowest_open(passed.tag)});
    }
  }
  if (!is_question) return;
  parts_.control.push(HeartbeatDue{packet.sender(), TARPON_HEARTBEAT_ANSWER, std::move(answer)});
}

std::size_t Heartbeats::emit(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    const std::optional<HeartbeatDue> one = parts_.control.pop_heartbeat();
    if (!one) break;
    tarpon_header header = parts_.writer.header(now, one->peer, TARPON_HEARTBEAT, 0, 0, 0);
    header.closed_below = 0;  // it belongs to no tag
    if (one->kind == TARPON_HEARTBEAT_QUESTION) parts_.clocks.ask(one->peer, header.sent_us);
    TxPacket& frame = frames[used++];
    PacketWriter::address(frame, one->peer);
    for (const NextNumber& next : one->numbers) {
      const tarpon_passed passed{next.tag, next.number};
      std::memcpy(frame.room + frame.length, &passed, sizeof passed);
      frame.length += sizeof passed;
    }
    parts_.writer.write(header, {.slot = one->kind, .flags = header.flags}, {&frame, 1});
  }
  return used;
}

}  // namespace tarpon
