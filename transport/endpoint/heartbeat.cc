// HEARTBEAT: signs of life, and how far a rank is, tag by tag.
//
// Packets of a tag say how far their sender is with it. After the last operation of a tag there are
// none, so HEARTBEATs tell it, for many tags at once: soon after operations were closed, and again
// to a peer that asks. When every peer has passed a tag, nobody can ask about it, and it is
// forgotten.
#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

constexpr Duration kTellAfter = 100ms;       // an operation was closed, and no other is open
constexpr Duration kAskPassedAfter = 300ms;  // a HEARTBEAT that tells may be lost
constexpr std::size_t kMostQuestions = 4;    // to a peer in a round

}  // namespace

/// `closed_below` of the tag has risen.
void Endpoint::State::note_untold(Channel& channel) {
  if (!channel.untold) {
    channel.untold = true;
    untold_tags.push_back(channel.tag);
  }
  const bool full = untold_tags.size() >= max_entries();
  tell_at = std::min(tell_at, full ? latest : latest + kTellAfter);
  ask_passed_at = std::min(ask_passed_at, latest + kAskPassedAfter);
  timer = std::min({timer, tell_at, ask_passed_at});
}

void Endpoint::State::tell_passed(Time now) {
  if (now < tell_at) return;
  tell_at = kNever;
  std::vector<NextNumber> numbers;
  const auto flush = [&] {
    for (Rank peer = 0; peer < options.world_size && !numbers.empty(); ++peer) {
      if (peer != options.rank) queue_heartbeat(peer, TARPON_HEARTBEAT_NEWS, numbers);
    }
    numbers.clear();
  };
  for (const std::uint32_t tag : untold_tags) {
    Channel* const channel = tags.find(tag);
    if (channel != nullptr) channel->untold = false;
    // Packets of an open operation say it.
    if (channel != nullptr && !channel->open.empty()) continue;
    numbers.push_back({tag, tags.lowest_open(tag)});
    if (numbers.size() == max_entries()) flush();
  }
  flush();
  untold_tags.clear();
}

/// Asks peers about tags that they may have passed without this rank's knowledge.
void Endpoint::State::ask_passed(Time now) {
  if (now < ask_passed_at) return;
  ask_passed_at = kNever;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank || standings.is_dead(peer)) continue;
    // Each round begins behind the last tag of the one before: a peer may never pass some tags.
    const auto& active = tags.active();
    std::size_t& from = asked_up_to[peer];
    std::vector<NextNumber> numbers;
    std::size_t questions = 0, seen = 0;
    for (; seen < active.size() && questions < kMostQuestions; ++seen) {
      const Channel& channel = *active[(from + seen) % active.size()];
      if (!channel.open.empty()) continue;
      if (!before(passed_by(channel, peer), channel.next_number)) continue;
      numbers.push_back({channel.tag, channel.next_number});
      if (numbers.size() < max_entries()) continue;
      queue_heartbeat(peer, TARPON_HEARTBEAT_QUESTION, std::exchange(numbers, {}));
      ++questions;
    }
    from += seen;
    if (numbers.empty() && questions == 0) continue;
    ask_passed_at = now + kAskPassedAfter;
    if (!numbers.empty()) queue_heartbeat(peer, TARPON_HEARTBEAT_QUESTION, std::move(numbers));
  }
}

/// Peers that open operations lack. Silent ones are asked until they are heard, so that the next
/// operation can count on them again.
std::uint64_t Endpoint::State::lacked_ranks() const {
  std::uint64_t ranks = standings.silent();
  for (const Operation* operation : open_operations) {
    for (std::uint32_t i = 0; i < operation->stage_count; ++i) {
      const Stage& stage = operation->stages[i];
      if (stage.closed) continue;
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
    if ((findings.ask >> peer & 1) != 0) queue_heartbeat(peer, TARPON_HEARTBEAT_QUESTION, {});
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
  timer = now;
}

void Endpoint::State::queue_heartbeat(Rank peer, std::uint32_t kind,
                                      std::vector<NextNumber> numbers) {
  if (!standings.is_dead(peer)) control.push(HeartbeatDue{peer, kind, std::move(numbers)});
}

void Endpoint::State::take_heartbeat(const tarpon_header& header,
                                     std::span<const std::byte> payload, Time now) {
  const bool is_answer = header.slot == TARPON_HEARTBEAT_ANSWER;
  const bool proven = is_answer && clocks.answers(header, now);
  std::vector<NextNumber> answer;
  for (std::size_t at = 0; at < payload.size(); at += sizeof(tarpon_passed)) {
    tarpon_passed passed;
    std::memcpy(&passed, payload.data() + at, sizeof passed);
    if (Channel* const channel = tags.find(passed.tag)) {
      note_passed(*channel, header.sender, passed.closed_below, proven, now);
    }
    if (header.slot == TARPON_HEARTBEAT_QUESTION && tags.remembers(passed.tag)) {
      // Of a lost tag this rank asks for nothing.
      answer.push_back({passed.tag, tags.is_lost(passed.tag) ? passed.closed_below
                                                             : tags.lowest_open(passed.tag)});
    }
  }
  if (header.slot != TARPON_HEARTBEAT_QUESTION) return;
  queue_heartbeat(header.sender, TARPON_HEARTBEAT_ANSWER, std::move(answer));
}

std::size_t Endpoint::State::emit_heartbeats(Time now, std::span<TxPacket> frames) {
  std::size_t used = 0;
  while (used < frames.size()) {
    const std::optional<HeartbeatDue> one = control.pop_heartbeat();
    if (!one) break;
    tarpon_header header = writer.header(now, one->peer, TARPON_HEARTBEAT, 0, 0, 0);
    header.closed_below = 0;  // it speaks of no tag
    if (one->kind == TARPON_HEARTBEAT_QUESTION) clocks.ask(one->peer, header.sent_us);
    TxPacket& frame = frames[used++];
    frame.peer = one->peer;
    frame.flow = 0;
    frame.payload = frame.room;
    frame.lender = kNoLender;
    frame.length = 0;
    for (const NextNumber& next : one->numbers) {
      const tarpon_passed passed{next.tag, next.number};
      std::memcpy(frame.room + frame.length, &passed, sizeof passed);
      frame.length += sizeof passed;
    }
    writer.write(header, {.slot = one->kind, .flags = header.flags}, frame);
  }
  return used;
}

}  // namespace tarpon
