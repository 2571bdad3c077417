#include "transport/endpoint/passed_peers.h"

#include "transport/operation/open_operation.h"
#include "transport/rank_mask.h"
#include "transport/tags/passed_news.h"

namespace tarpon {

void PassedPeers::note_header(TagState& tag_state, const tarpon_header& header, Time now) {
  const std::uint32_t below = closed_below(header);
  if (!before(tag_state.closed_below_of[header.sender], below)) return;
  note(tag_state, header.sender, below, proves_end(tag_state, header, now), now);
}

void PassedPeers::note(TagState& tag_state, Rank peer, std::uint32_t below, bool proven, Time now) {
  std::uint32_t& known = tag_state.closed_below_of[peer];
  if (!before(known, below)) return;
  if (!proven && below - known > parts_.options.window) return check_jump(tag_state, peer, now);
  known = below;
  for (const TagState::Open& one : tag_state.open) {
    if (before(one.number, below)) one.operation->peer_closed(peer, now);
  }
  release(tag_state);
}

/// Whether the packet tells the end of the lowest open operation, and left its sender after this
/// rank's latest READY of it did.
bool PassedPeers::proves_end(const TagState& tag_state, const tarpon_header& header,
                             Time now) const {
  if (header.type != TARPON_CLOSED && header.type != TARPON_ABORT) return false;
  if (tag_state.open.empty() || tag_state.open.front().number != header.operation) return false;
  const Operation& lowest = tag_state.open.front().operation->state();
  return lowest.peers[header.sender].ready().is_answered_by(header, now);
}

/// Asks `peer` for the end of the lowest open operation.
void PassedPeers::check_jump(const TagState& tag_state, Rank peer, Time now) {
  if (tag_state.open.empty()) return;  // the next operation asks, or a HEARTBEAT
  Operation& lowest = tag_state.open.front().operation->state();
  if (lowest.peers[peer].check_jump(now, lowest.quiet_delay)) parts_.alarm.no_later_than(now);
}

void PassedPeers::release(TagState& tag_state) {
  if (tag_state.kept.empty() && !tag_state.open.empty()) return;
  // A rank that has left may ask for operations that it has made and not passed, [first, end).
  std::uint32_t passed = tag_state.next_number, first = passed, end = 0;
  bool serves_left = false;
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if (peer == parts_.options.rank) continue;
    const std::uint32_t theirs = passed_by(tag_state, peer, parts_.participants);
    if (!parts_.participants.has_left(peer)) {
      if (before(theirs, passed)) passed = theirs;
    } else if (theirs != tag_state.next_number) {
      const std::uint32_t made = parts_.participants.made(peer, tag_state.tag);
      if (before(theirs, first)) first = theirs;
      if (!serves_left || before(end, made)) end = made;
      serves_left = true;
    }
  }
  parts_.tags.release(tag_state, before(first, passed) ? first : passed);
  if (serves_left && before(end, passed)) parts_.tags.release(tag_state, end, passed);
  // A result for some ranks goes when these have passed. The other ranks need not have.
  parts_.tags.release_if(tag_state, [&](const KeptResult& kept) {
    return have_passed(tag_state, kept.data->receivers, kept.number);
  });
  if (all_are_through(tag_state)) look_at(tag_state.tag);
}

/// Whether `peers` have passed operation `number`. Bit r: rank r.
bool PassedPeers::have_passed(const TagState& tag_state, std::uint64_t peers,
                              std::uint32_t number) const {
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if ((peers & bit(peer)) == 0 || peer == parts_.options.rank) continue;
    if (!before(number, passed_by(tag_state, peer, parts_.participants))) return false;
  }
  return true;
}

/// Whether no peer, nor this rank, is still at an operation of this tag, or late.
bool PassedPeers::all_are_through(const TagState& tag_state) const {
  if (!tag_state.open.empty()) return false;
  if (tag_state.lost) return true;  // this rank has nothing of it for a peer
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    if (peer == parts_.options.rank) continue;
    if (passed_by(tag_state, peer, parts_.participants) != tag_state.next_number) return false;
  }
  return true;
}

void PassedPeers::forget_tags() {
  EarlyPackets& early = parts_.early.packets();
  for (const std::uint32_t tag : early.take_stale_tags()) look_at(tag);
  for (const std::uint32_t tag : perhaps_passed_) {
    TagState* const tag_state = parts_.tags.find(tag);
    if (tag_state == nullptr || !all_are_through(*tag_state)) continue;
    if (!early.has(tag)) parts_.tags.forget(*tag_state);
  }
  perhaps_passed_.clear();
}

}  // namespace tarpon
