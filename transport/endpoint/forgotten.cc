// Ranks that remember the numbers of a tag differently.
//
// A rank that no longer remembers a tag begins it with 0 again. A peer that remembers it answers
// with ABORT and its own next number. The forgetful rank ends its call, gives the numbers below up,
// and takes the peer's number for that call, which it aborts everywhere. So the call ends as
// aborted on all ranks, nothing pairs that does not belong together, and the next calls match
// again.
#include <algorithm>

#include "transport/endpoint/state.h"

namespace tarpon {

/// The channel that a packet belongs to; nullptr where the tag was never used here, is not
/// remembered, or every peer had passed the operation before.
Channel* Endpoint::State::channel_of(const tarpon_header& header) {
  if (Channel* const channel = tags.find(header.tag)) return channel;
  const bool goes_on =
      tags.remembers(header.tag) && !before(header.operation, tags.next_number(header.tag));
  if (!goes_on) return nullptr;
  passed_tags.push_back(header.tag);  // unless the packet tells of an operation to come
  return &tags.activate(header.tag);
}

/// Packets of operations that the peer has passed may still be on their way: those say nothing.
void Endpoint::State::tell_forgotten(const tarpon_header& header) {
  if (overtaken) return;
  queue_control({.type = TARPON_ABORT,
                 .peer = header.sender,
                 .tag = header.tag,
                 .operation = header.operation,
                 .slot = TARPON_ABORT_FORGOTTEN,
                 .contributors = 1ull << header.sender});
}

/// A peer has made operations of this tag that this rank no longer remembers: those below `number`.
void Endpoint::State::take_forgotten(Channel& channel, std::uint32_t number) {
  if (before(number, channel.next_number)) return;
  const std::uint64_t self = 1ull << options.rank;
  channel.next_number = number + 1;
  PastOperation given_up;
  given_up.aborted = true;
  given_up.number = number;
  given_up.reason = TARPON_ABORT_FORGOTTEN;
  given_up.ranks = self;
  channel.remember(given_up, std::size_t{2} * options.window);
  channel.remember_abort(number, TARPON_ABORT_FORGOTTEN, self);
  for (Rank peer = 0; peer < options.world_size; ++peer) {
    if (peer == options.rank) continue;
    queue_control({.type = TARPON_ABORT,
                   .peer = peer,
                   .tag = channel.tag,
                   .operation = number,
                   .slot = TARPON_ABORT_FORGOTTEN,
                   .contributors = self});
  }
  std::erase_if(early, [&](const EarlyOperation& one) {
    if (one.tag != channel.tag || !before(one.number, channel.next_number)) return false;
    for (const std::uint32_t cell : one.cells) early_parking.release(cell);
    return true;
  });
}

}  // namespace tarpon
