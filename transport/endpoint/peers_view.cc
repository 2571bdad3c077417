#include "transport/peers_view.h"

#include "transport/operation/sender.h"
#include "transport/peers/participants.h"
#include "transport/peers/peer_clocks.h"

namespace tarpon {

std::uint64_t PeersView::silent() const {
  return participants_.silent();
}

bool PeersView::detects_silence() const {
  return options_.detects_silence;
}

Time PeersView::last_heard(Rank peer) const {
  return peer < options_.world_size ? clocks_.heard(peer) : Time{};
}

std::uint32_t PeersView::flows() const {
  return sender_.flows();
}

}  // namespace tarpon
