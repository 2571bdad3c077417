#include "collectives/engine/report/peer_report.h"

#include <algorithm>

namespace tarpon {

void report_last_heard(const Endpoint& endpoint, Rank self, std::uint16_t world, Time now,
                       Report& report) {
  report.peers.assign(world, {});
  for (Rank peer = 0; peer < world; ++peer) {
    const Time heard = peer == self ? Time{} : endpoint.peers().last_heard(peer);
    if (heard != Time{}) report.peers[peer].last_heard = std::max(Duration::zero(), now - heard);
  }
}

}  // namespace tarpon
