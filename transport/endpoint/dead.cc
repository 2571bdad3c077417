// Ranks that are gone. This rank does not wait for a dead rank, sends it nothing, and takes nothing
// from it. A rank that left is gone from the operations that it has not made. Bounded operations do
// not wait for silent ranks.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {

void Endpoint::peer_dead(Rank peer, Time now) {
  State& s = *state_;
  if (peer >= s.options.world_size || peer == s.options.rank || s.standings.is_dead(peer)) return;
  s.latest = now;
  s.standings.set_dead(peer);
  s.control.drop(peer);
  for (const auto& channel : s.tags.active()) {
    channel->closed_below_of[peer] = channel->next_number;
    s.release_passed(*channel);
  }
  s.forget_passed_tags();
  for (Operation* operation : s.open_operations) {
    s.leave_out(*operation, peer, true);
    s.fewer_take_part(*operation, now);  // half of fewer ranks
  }
  s.timer = std::min(s.timer, now);
}

void Endpoint::peer_left(Rank peer, std::span<const NextNumber> next_numbers, Time now) {
  State& s = *state_;
  if (peer >= s.options.world_size || peer == s.options.rank || s.standings.is_dead(peer)) return;
  s.latest = now;
  s.standings.set_left(peer, {next_numbers.begin(), next_numbers.end()});
  for (const auto& channel : s.tags.active()) s.release_passed(*channel);
  s.forget_passed_tags();
  for (Operation* operation : s.open_operations) {
    const bool excluded = s.standings.excludes(peer, operation->tag, operation->number);
    if (excluded) s.leave_out(*operation, peer, true);
    s.fewer_take_part(*operation, now);
  }
  s.timer = std::min(s.timer, now);
}

bool Endpoint::takes_no_part(OperationHandle handle, Rank peer) const {
  const Operation* operation = state_->find(handle);
  return operation != nullptr && peer != state_->options.rank &&
         state_->standings.excludes(peer, operation->tag, operation->number);
}

std::vector<NextNumber> Endpoint::unpassed() const {
  std::vector<NextNumber> result;
  for (const auto& channel : state_->tags.active()) {
    bool passed = channel->open.empty();
    for (Rank peer = 0; peer < state_->options.world_size && passed; ++peer) {
      if (peer == state_->options.rank) continue;
      passed = !before(passed_by(*channel, peer, state_->standings), channel->next_number);
    }
    if (!passed) result.push_back({channel->tag, channel->next_number});
  }
  return result;
}

void Endpoint::set_rejoining(std::uint64_t ranks, Time now) {
  State& s = *state_;
  s.latest = now;
  const std::uint64_t known = s.standings.rejoining();
  s.standings.set_rejoining(ranks & ~bit(s.options.rank));
  for (Operation* operation : s.open_operations) {
    if (!operation->bounded) continue;
    for (const Rank peer : ranks_of(s.standings.rejoining() & ~known)) {
      // A peer that has begun the operation has ended it: it still answers requests for its data.
      if (!operation->peers[peer].heard) s.leave_out(*operation, peer, false);
    }
    s.fewer_take_part(*operation, now);
  }
  s.timer = std::min(s.timer, now);
}

bool Endpoint::detects_silence() const {
  return state_->options.detects_silence;
}

std::uint64_t Endpoint::silent() const {
  return state_->standings.silent();
}

/// Stops waiting for `peer`: its packets that are here stay, the rest is missing. `gone`: the peer
/// never comes back.
void Endpoint::State::leave_out(Operation& operation, Rank peer, bool gone) {
  lateness.answered(operation, peer, latest);
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
    receiver.give_up(operation, stage, *message, latest);
  }
}

}  // namespace tarpon
