#include "transport/peers/liveness.h"

#include <algorithm>
#include <utility>

namespace tarpon {

Liveness::Findings Liveness::check(Time now, std::uint64_t lacked, const std::vector<Time>& heard) {
  Findings findings;
  const bool ran = now - last_check_ <= 2 * ask_every();
  const Time before = std::exchange(last_check_, now);
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if ((lacked >> rank & 1) == 0) {
      peer = {};
      continue;
    }
    if (peer.lacked_since == kNever || !ran) peer = {ran ? before : now, 0};
    const Time since = std::max(peer.lacked_since, heard[rank]);
    if (since > peer.lacked_since) peer = {since, 0};
    if (now - since < silent_after_ / 3) continue;
    if (now - since >= silent_after_ && peer.asked >= 2)
      findings.silent |= std::uint64_t{1} << rank;
    findings.ask |= std::uint64_t{1} << rank;
    ++peer.asked;
  }
  next_ = lacked == 0 ? kNever : now + ask_every();
  return findings;
}

}  // namespace tarpon
