// Ranks that remember the numbers of a tag differently.
//
// A rank that has forgotten a tag begins it with 0 again. A peer that remembers the tag answers
// with ABORT 8. From then on the tag is *lost* to the forgetful rank: it refuses its own calls of
// that tag, and answers those of its peers with ABORT 8. So every call of the tag ends as aborted
// on all ranks, and none is paired with a call that does not belong to it.
//
// A rank that has forgotten some tags cannot tell a new tag from a forgotten one. It makes the
// first operation of such a tag alone. Otherwise a second one could have a number that the peers
// use, and be taken for theirs before the answer to the first one comes.
#include "transport/endpoint/state.h"

namespace tarpon {

/// The channel that a packet belongs to; nullptr where the tag was never used here, is not
/// remembered, or every peer had passed the operation before.
Channel* Endpoint::State::channel_of(const tarpon_header& header) {
  if (Channel* const channel = tags.find(header.tag)) return channel;
  const bool goes_on =
      tags.remembers(header.tag) &&
      (tags.is_lost(header.tag) || !before(header.operation, tags.next_number(header.tag)));
  if (!goes_on) return nullptr;
  passed_tags.push_back(header.tag);  // unless the packet tells of an operation to come
  return &tags.activate(header.tag);
}

/// Tells the sender of `header` that `forgetful` does not know the numbers of the tag.
void Endpoint::State::tell_forgotten(const tarpon_header& header, Rank forgetful) {
  control.push(ControlDue{.type = TARPON_ABORT,
                          .peer = header.sender,
                          .tag = header.tag,
                          .operation = header.operation,
                          .reason = TARPON_ABORT_FORGOTTEN,
                          .ranks = 1ull << forgetful});
}

/// Handles an ABORT 8 that names this rank. If this rank has forgotten no tag, it has left, and the
/// peer has passed the operation: peers keep nothing for a rank that left. Then a bounded call of
/// this rank is late, and gets nothing from that peer.
void Endpoint::State::take_told_forgotten(Channel& channel, const tarpon_header& header, Time now) {
  if (take_forgotten(channel, header.sender, now)) return;
  Operation* const operation = channel.find_open(header.operation);
  if (operation == nullptr || !operation->bounded) return refuse_control(DropReason::unexpected);
  become_late(*operation, header.sender, now);
  nothing_from(*operation, header.sender);
}

/// Marks the tag as lost: a peer knows numbers of it that this rank has forgotten. Returns false
/// when this rank has forgotten none.
bool Endpoint::State::take_forgotten(Channel& channel, Rank from, Time now) {
  if (!tags.has_forgotten()) return false;
  if (channel.lost) return true;
  channel.lost = true;
  for (const Channel::Open& one : channel.open) {
    take_abort(*one.operation, from, TARPON_ABORT_FORGOTTEN, 1ull << options.rank, now);
  }
  early.forget(channel.tag);
  return true;
}

}  // namespace tarpon
