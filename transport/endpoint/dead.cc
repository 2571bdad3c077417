// Ranks that are gone: nothing is waited for, sent to, or taken from a dead rank. A rank that left
// is gone from the operations that it has not made. Bounded operations do not wait for silent
// ranks.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {

void Endpoint::peer_dead(Rank peer, Time now) {
  State& s = *state_;
  if (peer >= s.options.world_size || peer == s.options.rank || s.dead[peer]) return;
  s.latest = now;
  s.dead[peer] = true;
  if (!s.silent[peer]) --s.live;
  s.silent[peer] = false;
  s.left[peer].reset();
  std::erase_if(s.control, [peer](const ControlDue& due) { return due.peer == peer; });
  std::erase_if(s.retained_due, [peer](const RetainedDue& due) { return due.peer == peer; });
  std::erase_if(s.heartbeats, [peer](const HeartbeatDue& due) { return due.peer == peer; });
  for (const auto& channel : s.tags.active()) {
    channel->closed_below_of[peer] = channel->next_number;
    s.release_passed(*channel);
  }
  s.forget_passed_tags();
  for (Operation* operation : s.open_operations) {
    s.leave_out(*operation, peer, true);
    s.fewer_take_part(*operation, now);  // half of fewer ranks
  }
  s.timer = now;
}

void Endpoint::peer_left(Rank peer, std::span<const NextNumber> next_numbers, Time now) {
  State& s = *state_;
  if (peer >= s.options.world_size || peer == s.options.rank || s.dead[peer]) return;
  s.latest = now;
  std::vector<NextNumber> sorted(next_numbers.begin(), next_numbers.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const NextNumber& a, const NextNumber& b) { return a.tag < b.tag; });
  s.left[peer] = std::move(sorted);
  for (const auto& channel : s.tags.active()) s.release_passed(*channel);
  s.forget_passed_tags();
  for (Operation* operation : s.open_operations) {
    if (s.excluded(peer, operation->tag, operation->number)) s.leave_out(*operation, peer, true);
    s.fewer_take_part(*operation, now);
  }
  s.timer = now;
}

bool Endpoint::takes_no_part(OperationHandle handle, Rank peer) const {
  const Operation* operation = state_->find(handle);
  return operation != nullptr && peer != state_->options.rank &&
         state_->excluded(peer, operation->tag, operation->number);
}

std::vector<NextNumber> Endpoint::unpassed() const {
  std::vector<NextNumber> result;
  for (const auto& channel : state_->tags.active()) {
    bool passed = channel->open.empty();
    for (Rank peer = 0; peer < state_->options.world_size && passed; ++peer) {
      if (peer == state_->options.rank) continue;
      passed = !before(state_->passed_by(*channel, peer), channel->next_number);
    }
    if (!passed) result.push_back({channel->tag, channel->next_number});
  }
  return result;
}

std::uint64_t Endpoint::silent() const {
  return state_->silent_ranks();
}

/// Whether `peer` is dead, or left before it made this operation.
bool Endpoint::State::excluded(Rank peer, std::uint32_t tag, std::uint32_t number) const {
  if (dead[peer]) return true;
  if (!left[peer]) return false;
  const std::vector<NextNumber>& made = *left[peer];
  const auto found = std::lower_bound(
      made.begin(), made.end(), tag,
      [](const NextNumber& one, std::uint32_t wanted) { return one.tag < wanted; });
  // What is not listed is over at every rank.
  return found == made.end() || found->tag != tag || !before(number, found->number);
}

/// The lowest operation of the tag that `peer` may still ask for, as far as heard.
std::uint32_t Endpoint::State::passed_by(const Channel& channel, Rank peer) const {
  const std::uint32_t heard = channel.closed_below_of[peer];
  return excluded(peer, channel.tag, heard) ? channel.next_number : heard;
}

/// Ranks that take part in the operation and are heard.
std::uint32_t Endpoint::State::live_in(const Operation& operation) const {
  std::uint32_t count = live;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    const bool counted = left[peer].has_value() && !silent[peer];
    if (counted && excluded(peer, operation.tag, operation.number)) --count;
  }
  return count;
}

/// The packets of `peer` that are here stay; the rest is missing. `gone`: it never comes back.
void Endpoint::State::leave_out(Operation& operation, Rank peer, bool gone) {
  answered(operation, peer);
  operation.peers[peer].ready_at = kNever;
  for (std::uint8_t i = 0; i < operation.stage_count; ++i) {
    Stage& stage = operation.stages[i];
    if (gone) {
      apply_grant(operation, i, peer, TARPON_CREDIT_COMPLETE);
    } else if (SendMessage* send = stage.send_to(peer)) {
      send->done = true;  // not confirmed: it may ask for this once it is back
    }
    ReceiveMessage* message = stage.receive_from(peer);
    if (message == nullptr) continue;
    message->granted = message->slots;  // paced credit is not spent on it
    if (stage.closed || message->final || message->delivered()) continue;
    message->final = true;
    message_ended(operation, stage, *message);
  }
}

}  // namespace tarpon
