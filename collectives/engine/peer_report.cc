#include "collectives/engine/peer_report.h"

#include <algorithm>

namespace tarpon {

std::string_view name(CallStage stage) {
  switch (stage) {
    case CallStage::queued:
      return "queued";
    case CallStage::scatter:
      return "scatter";
    case CallStage::gather:
      return "gather";
    case CallStage::result:
      return "result";
  }
  return "?";
}

void report_last_heard(const Endpoint& endpoint, Rank self, std::uint16_t world, Time now,
                       Report& report) {
  report.peers.assign(world, {});
  for (Rank peer = 0; peer < world; ++peer) {
    const Time heard = peer == self ? Time{} : endpoint.last_heard(peer);
    if (heard != Time{}) report.peers[peer].last_heard = std::max(Duration::zero(), now - heard);
  }
}

}  // namespace tarpon
