#include "transport/endpoint/passed_peers.h"

#include "transport/operation/open_operation.h"
#include "transport/tags/passed_news.h"

namespace tarpon {

void PassedPeers::note_header(Channel& channel, const tarpon_header& header, Time now) {
  const std::uint32_t below = closed_below(header);
  if (!before(channel.closed_below_of[header.sender], below)) return;
  note(channel, header.sender, below, proves_end(channel, header, now), now);
}

void PassedPeers::note(Channel& channel, Rank peer, std::uint32_t below, bool proven, Time now) {
  std::uint32_t& known = channel.closed_below_of[peer];
  if (!before(known, below)) return;
  if (!proven && below - known > parts_.options.window) return check_jump(channel, peer, now);
  known = below;
  for (const Channel::Open& one : channel.open) {
    if (before(one.number, below)) one.operation->peer_closed(peer, now);
  }
  release(channel);
}

/// Whether the packet tells the end of the lowest open operation, and left its sender after this
/// rank's latest READY of it did.
bool PassedPeers::proves_end(const Channel& channel, const tarpon_header& header, Time now) const {
  if (header.type != TARPON_CLOSED && header.type != TARPON_ABORT) return false;
  if (channel.open.empty() || channel.open.front().number != header.operation) return false;
  const Operation& lowest = channel.open.front().operation->state();
  return lowest.peers[header.sender].ready().is_answered_by(header, now);
}

/// Asks `peer` for the end of the lowest open operation.
void PassedPeers::check_jump(const Channel& channel, Rank peer, Time now) {
  if (channel.open.empty()) return;  // the next operation asks, or a HEARTBEAT
  Operation& lowest = channel.open.front().operation->state();
  if (lowest.peers[peer].check_jump(now, lowest.quiet_delay)) parts_.alarm.no_later_than(now);
}

void PassedPeers::release(Channel& channel) {
  if (channel.kept.empty() && !channel.open.empty()) return;
  // A rank that has left may ask for operations that it has made and not passed, [first, end).
  std::uint32_t passed = channel.next_number, first = passed, end = 0;
  bool serves_left = false;
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if (peer == parts_.options.rank) continue;
    const std::uint32_t theirs = passed_by(channel, peer, parts_.standings);
    if (!parts_.standings.has_left(peer)) {
      if (before(theirs, passed)) passed = theirs;
    } else if (theirs != channel.next_number) {
      const std::uint32_t made = parts_.standings.made(peer, channel.tag);
      if (before(theirs, first)) first = theirs;
      if (!serves_left || before(end, made)) end = made;
      serves_left = true;
    }
  }
  parts_.tags.release(channel, before(first, passed) ? first : passed);
  if (serves_left && before(end, passed)) parts_.tags.release(channel, end, passed);
  if (all_are_through(channel)) look_at(channel.tag);
}

/// Whether no peer, nor this rank, is still at an operation of this tag, or late.
bool PassedPeers::all_are_through(const Channel& channel) const {
  if (!channel.open.empty()) return false;
  if (channel.lost) return true;  // this rank has nothing of it for a peer
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if (peer == parts_.options.rank) continue;
    if (passed_by(channel, peer, parts_.standings) != channel.next_number) return false;
  }
  return true;
}

void PassedPeers::forget_tags() {
  EarlyPackets& early = parts_.early.packets();
  for (const std::uint32_t tag : early.take_stale_tags()) look_at(tag);
  for (const std::uint32_t tag : perhaps_passed_) {
    Channel* const channel = parts_.tags.find(tag);
    if (channel == nullptr || !all_are_through(*channel)) continue;
    if (!early.has(tag)) parts_.tags.forget(*channel);
  }
  perhaps_passed_.clear();
}

}  // namespace tarpon
