// HEARTBEAT: signs of life, and how far ranks are (passed_news.h).
#include <cstring>
#include <utility>

#include "transport/endpoint/state.h"

namespace tarpon {

/// Peers that open operations lack, or wait for. Silent ones are asked until they are heard, so
/// that the next operation can count on them again.
std::uint64_t Endpoint::State::lacked_ranks() const {
  std::uint64_t ranks = standings.silent();
  for (const Operation* operation : open_operations) {
    if (operation->forwards) ranks |= unconfirmed_by(*operation);
    for (std::uint32_t i = 0; i < operation->stage_count; ++i) {
      const Stage& stage = operation->stages[i];
      if (stage.closed) continue;
      for (Rank peer = 0; peer < options.world_size && operation->forwards; ++peer) {
        const bool excluded = standings.excludes(peer, operation->tag, operation->number);
        if (peer != options.rank && !excluded) ranks |= bit(peer);
      }
      for (const ReceiveMessage& message : stage.receives) {
        if (!message.final && !message.delivered()) ranks |= 1ull << message.peer;
      }
    }
  }
  return ranks;
}

void Endpoint::State::check_silence(Time now) {
  if (!options.detects_silence || now < liveness.next()) return;
  std::vector<Time> heard(options.world_size);
  for (Rank peer = 0; peer < options.world_size; ++peer) heard[peer] = clocks.heard(peer);
  const Liveness::Findings findings = liveness.check(now, lacked_ranks(), heard);
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if ((findings.ask >> peer & 1) != 0)
      control.push(HeartbeatDue{peer, TARPON_HEARTBEAT_QUESTION, {}});
    if ((findings.silent >> peer & 1) != 0) set_silent(peer, true, now);
  }
}

void Endpoint::State::set_silent(Rank peer, bool is_silent, Time now) {
  if (!standings.set_silent(peer, is_silent)) return;
  Event event;
  event.kind = is_silent ? Event::Kind::silent : Event::Kind::heard;
  event.peer = peer;
  journal.tell(event);
  if (!is_silent) return;
  for (Operation* operation : open_operations) {
    if (!operation->bounded) continue;
    leave_out(*operation, peer, false);
    fewer_take_part(*operation, now);
  }
  timer = std::min(timer, now);
}

void Endpoint::State::take_heartbeat(const ControlPacket& packet, Time now) {
  const bool is_answer = packet.heartbeat() == TARPON_HEARTBEAT_ANSWER;
  const bool is_question = packet.heartbeat() == TARPON_HEARTBEAT_QUESTION;
  const bool proven = is_answer && clocks.answers(packet.header(), now);
  std::vector<NextNumber> answer;
  for (std::size_t i = 0; i < packet.passed_count(); ++i) {
    const tarpon_passed passed = packet.passed(i);
    if (Channel* const channel = tags.find(passed.tag)) {
      note_passed(*channel, packet.sender(), passed.closed_below, proven, now);
    }
    if (is_question && tags.remembers(passed.tag)) {
      // This rank asks for nothing of a lost tag.
      answer.push_back({passed.tag, tags.is_lost(passed.tag) ? passed.closed_below
                                                             : tags.lowest_open(passed.tag)});
    }
  }
  if (!is_question) return;
  control.push(HeartbeatDue{packet.sender(), TARPON_HEARTBEAT_ANSWER, std::move(answer)});
}

std::size_t Endpoint::State::emit_heartbeats(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    const std::optional<HeartbeatDue> one = control.pop_heartbeat();
    if (!one) break;
    tarpon_header header = writer.header(now, one->peer, TARPON_HEARTBEAT, 0, 0, 0);
    header.closed_below = 0;  // it belongs to no tag
    if (one->kind == TARPON_HEARTBEAT_QUESTION) clocks.ask(one->peer, header.sent_us);
    TxPacket& frame = frames[used++];
    PacketWriter::address(frame, one->peer);
    for (const NextNumber& next : one->numbers) {
      const tarpon_passed passed{next.tag, next.number};
      std::memcpy(frame.room + frame.length, &passed, sizeof passed);
      frame.length += sizeof passed;
    }
    writer.write(header, {.slot = one->kind, .flags = header.flags}, {&frame, 1});
  }
  return used;
}

}  // namespace tarpon
