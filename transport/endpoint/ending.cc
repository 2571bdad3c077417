// How an operation ends, and when its results and its tag are forgotten.
#include <algorithm>
#include <utility>

#include "transport/endpoint/state.h"

namespace tarpon {

void Endpoint::State::end(Operation& operation, std::unique_ptr<Retained> retained,
                          std::uint64_t ranks, std::optional<std::uint32_t> abort_reason) {
  sender.measure_flows(operation, abort_reason.has_value());
  receiver.release(operation, latest);
  Channel& channel = *tags.find(operation.tag);
  if (retained != nullptr) {
    tags.retain(channel, {.number = operation.number,
                          .slot_bytes = operation.slot_bytes,
                          .epoch = operation.epoch,
                          .signature_hash = operation.signature_hash,
                          .marked = operation.marks.any(),
                          .data = std::move(retained)});
  }
  channel.unproven &= abort_reason.has_value();  // a result proves it
  channel.late_packets += operation.late_packets;
  channel.remember({.aborted = abort_reason.has_value(),
                    .number = operation.number,
                    .reason = abort_reason.value_or(0),
                    .ranks = ranks,
                    .marks = operation.marks,
                    .epoch = operation.epoch,
                    .signature = operation.signature},
                   std::size_t{2} * options.window);
  // After a mismatch a peer has to be told more than an ABORT says.
  if (abort_reason && *abort_reason != TARPON_ABORT_MISMATCH) {
    channel.remember_abort(operation.number, *abort_reason, ranks);
  }
  const std::uint32_t number = operation.number;
  std::erase_if(channel.open,
                [&](const Channel::Open& one) { return one.operation == &operation; });
  std::erase(open_operations, &operation);
  journal.forget(operation.handle);
  ++operation.handle.generation;
  free_operations.push_back(operation.handle.index);
  passed_news.rose(channel, latest);
  timer = std::min(timer, passed_news.next());
  release_passed(channel);
  if (!abort_reason) tell_owners(channel, number, ranks);
}

/// Tells the absent owners that this rank has closed `operation`. An older open operation of the
/// tag keeps `closed_below` from telling it.
void Endpoint::State::tell_owners(const Channel& channel, std::uint32_t operation,
                                  std::uint64_t absent) {
  if (!before(channel.lowest_open(), operation)) return;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if ((absent >> peer & 1) == 0 || peer == options.rank || standings.is_dead(peer)) continue;
    control.push(ControlDue{.type = TARPON_CLOSED,
                            .peer = peer,
                            .tag = channel.tag,
                            .operation = operation,
                            .ranks = absent});
  }
}

/// Frees the results that no peer needs any more. Call it when a peer is further, or gone.
void Endpoint::State::release_passed(Channel& channel) {
  if (channel.kept.empty() && !channel.open.empty()) return;
  // A rank that has left may ask for operations that it has made and not passed, [first, end).
  std::uint32_t passed = channel.next_number, first = passed, end = 0;
  bool serves_left = false;
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank) continue;
    const std::uint32_t theirs = passed_by(channel, peer, standings);
    if (!standings.has_left(peer)) {
      if (before(theirs, passed)) passed = theirs;
    } else if (theirs != channel.next_number) {
      const std::uint32_t made = standings.made(peer, channel.tag);
      if (before(theirs, first)) first = theirs;
      if (!serves_left || before(end, made)) end = made;
      serves_left = true;
    }
  }
  tags.release(channel, before(first, passed) ? first : passed);
  if (serves_left && before(end, passed)) tags.release(channel, end, passed);
  if (all_are_through(channel)) passed_tags.push_back(channel.tag);
}

/// Whether no peer, nor this rank, is still at an operation of this tag, or late.
bool Endpoint::State::all_are_through(const Channel& channel) const {
  if (!channel.open.empty()) return false;
  if (channel.lost) return true;  // this rank has nothing of it for a peer
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer != options.rank && passed_by(channel, peer, standings) != channel.next_number)
      return false;
  }
  return true;
}

/// Forgets the tags that no rank can ask about any more.
void Endpoint::State::forget_passed_tags() {
  for (const std::uint32_t tag : early.take_stale_tags()) passed_tags.push_back(tag);
  for (const std::uint32_t tag : passed_tags) {
    Channel* const channel = tags.find(tag);
    if (channel == nullptr || !all_are_through(*channel)) continue;
    if (!early.has(tag)) tags.forget(*channel);
  }
  passed_tags.clear();
}

}  // namespace tarpon
