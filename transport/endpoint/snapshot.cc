// What the endpoint is doing, for observers from outside.
#include "transport/snapshot.h"

#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {
namespace {

std::uint64_t awaited(const Stage& stage) {
  std::uint64_t ranks = 0;
  for (const ReceiveMessage& message : stage.receives) {
    if (!message.final && !message.delivered()) ranks |= 1ull << message.peer;
  }
  return ranks;
}

/// The ranks that have not confirmed all messages of this rank yet.
std::uint64_t unconfirmed(const Operation& operation) {
  std::uint64_t ranks = 0;
  for (std::uint32_t i = 0; i < operation.stage_count; ++i) {
    if (!operation.stages[i].acknowledge) continue;
    for (const SendMessage& message : operation.stages[i].sends) {
      if (!message.done) ranks |= 1ull << message.peer;
    }
  }
  return ranks;
}

OperationSnapshot snapshot_of(const Operation& operation, Rank self) {
  OperationSnapshot result;
  result.tag = operation.tag;
  result.operation = operation.number;
  result.stages = operation.stage_count;
  result.opened = operation.opened;
  result.deadline = operation.deadline;
  while (result.stage < operation.stage_count && operation.stages[result.stage].closed) {
    ++result.stage;
  }
  result.waiting = result.stage < operation.stage_count ? awaited(operation.stages[result.stage])
                                                        : unconfirmed(operation);
  for (Rank peer = 0; peer < operation.peers.size(); ++peer) {
    if (peer != self && !operation.peers[peer].heard) result.silent |= 1ull << peer;
  }
  return result;
}

}  // namespace

Time Endpoint::last_heard(Rank peer) const {
  return peer < state_->options.world_size ? state_->clocks.heard(peer) : Time{};
}

std::uint32_t Endpoint::furthest(std::uint32_t tag) const {
  const Channel* channel = state_->tags.find(tag);
  if (channel == nullptr) return 0;
  std::uint32_t result = channel->lowest_open();
  for (Rank peer = 0; peer < state_->options.world_size; ++peer) {
    const std::uint32_t theirs = channel->closed_below_of[peer];
    if (peer != state_->options.rank && before(result, theirs)) result = theirs;
  }
  return result;
}

std::uint32_t Endpoint::ended_elsewhere(std::uint32_t tag, std::uint32_t number) const {
  const Channel* channel = state_->tags.find(tag);
  std::uint32_t most = 0;
  for (Rank peer = 0; channel != nullptr && peer < state_->options.world_size; ++peer) {
    if (peer == state_->options.rank || !state_->has_ended(*channel, peer, number)) continue;
    most = std::max(most, channel->closed_below_of[peer] - number);
  }
  return most;
}

void Endpoint::snapshot(EndpointSnapshot& out) const {
  const State& s = *state_;
  out.open = static_cast<std::uint32_t>(s.open_operations.size());
  const std::uint32_t shown = std::min(out.open, EndpointSnapshot::kOperations);
  for (std::uint32_t i = 0; i < shown; ++i) {
    out.operations[i] = snapshot_of(*s.open_operations[i], s.options.rank);
  }
  const auto ranks =
      static_cast<Rank>(std::min<std::size_t>(s.options.world_size, out.last_heard.size()));
  for (Rank peer = 0; peer < ranks; ++peer) out.last_heard[peer] = s.clocks.heard(peer);
  out.counters = s.counters;
}

}  // namespace tarpon
