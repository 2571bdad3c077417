#include "collectives/engine/hosts/host_reports.h"

#include <algorithm>

#include "transport/rank_mask.h"

namespace tarpon::hosts {

HostLine::Ending ending_of(const Report& report, Rank self) {
  AbortReason reason = report.abort_reason;
  std::uint64_t blamed = mask_of(report.blamed);
  switch (report.status) {
    case Status::mismatch:
      reason = AbortReason::mismatch;
      blamed = bit(self);
      break;
    case Status::peer_late:
      if (report.mode == Mode::bounded) return {.state = CallState::over};
      reason = AbortReason::late;
      blamed = mask_of(report.late_ranks);
      break;
    case Status::aborted:
      break;
    default:
      return {.state = CallState::over};
  }
  return {.state = CallState::given_up,
          .reason = static_cast<std::uint32_t>(reason),
          .blamed = blamed != 0 ? blamed : bit(self)};
}

Event abort_event(const HostGroup& group, std::uint32_t rank, const HostLine::Told& told,
                  OperationHandle operation, std::uint32_t world) {
  Event event;
  event.kind = Event::Kind::aborted;
  event.operation = operation;
  event.peer = group.ranks()[rank];
  event.reason = told.reason < TARPON_ABORT_END ? told.reason : 0;
  event.ranks = told.blamed & first_ranks(world);
  if (event.ranks == 0) event.ranks = bit(event.peer);
  return event;
}

void report_near(Report& report, const HostGroup& group, const LineWork& work,
                 const HostPeers& peers, std::size_t element_bytes, Time submitted) {
  std::uint64_t taken = 0;
  for (std::uint32_t rank = 0; rank < group.ranks().size(); ++rank) {
    if (rank == group.self) continue;
    PeerReport& peer = report.peers[group.ranks()[rank]];
    const auto due = work.due_from(rank);
    const auto has = work.taken_from(rank);
    for (std::size_t stage = 0; stage < due.size(); ++stage) {
      peer.bytes_expected[stage] += due[stage] * element_bytes;
      peer.bytes_received[stage] += has[stage] * element_bytes;
      taken += has[stage] * element_bytes;
    }
    if (peers.begun_at(rank) == kNever) continue;
    const Duration ago = std::max(Duration(), submitted + report.elapsed - peers.begun_at(rank));
    peer.last_heard = std::min(ago, peer.last_heard.value_or(ago));
  }
  report.bytes_received += taken;
  report.bytes_sent += taken;
}

}  // namespace tarpon::hosts
