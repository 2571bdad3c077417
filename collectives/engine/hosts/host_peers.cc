#include "collectives/engine/hosts/host_peers.h"

#include "transport/rank_mask.h"

namespace tarpon::hosts {

bool HostPeers::has_news() const {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank != self_ && is_new(rank, assignment_.line->told(rank, assignment_.number).state))
      return true;
  }
  return false;
}

bool HostPeers::all_hold(std::uint64_t without) const {
  if ((lacking() & ~without) != 0) return false;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank == self_ || (without >> rank & 1) != 0) continue;
    if (assignment_.line->told(rank, assignment_.number).state != CallState::begun) return false;
  }
  return true;
}

bool HostPeers::is_overtaken() const {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank != self_ && assignment_.line->told(rank, assignment_.number).overtaken) return true;
  }
  return false;
}

std::uint64_t HostPeers::ended() const {
  std::uint64_t ranks = 0;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank == self_) continue;
    const CallState state = assignment_.line->told(rank, assignment_.number).state;
    const bool ended = state == CallState::given_up || state == CallState::over;
    ranks |= std::uint64_t{ended} << rank;
  }
  return ranks;
}

std::uint64_t HostPeers::lacking() const {
  return first_ranks(ranks_) & ~heard_ & ~(std::uint64_t{1} << self_);
}

}  // namespace tarpon::hosts
