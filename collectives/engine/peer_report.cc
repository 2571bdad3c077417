#include "collectives/engine/peer_report.h"

#include <algorithm>

#include "collectives/engine/allreduce_operation.h"

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

/// What is known at the end whatever the status is. The operation is still open at the endpoint.
void AllreduceOperation::report_end(Time now) {
  Report& report = call_->report;
  report.elapsed = now - submitted_;
  report.stage = !scatter_closed_  ? CallStage::scatter
                 : !gather_closed_ ? CallStage::gather
                                   : CallStage::result;
  report_last_heard(endpoint_, setting_.rank, setting_.world, now, report);
  for (std::size_t stage = 0; stage < schedule_.stages.size(); ++stage) {
    for (const TarSchedule::Transfer& transfer : schedule_.stages[stage].receives) {
      PeerReport& peer = report.peers[transfer.peer];
      peer.bytes_expected[stage] = transfer.bytes;
      peer.bytes_received[stage] =
          endpoint_.progress(handle_, static_cast<std::uint8_t>(stage), transfer.peer).bytes;
      report.bytes_received += peer.bytes_received[stage];
    }
  }
  if (report.status != Status::complete) return;
  const std::uint64_t everybody = ~0ull >> (64 - setting_.world);
  for (PeerReport& peer : report.peers) peer.contributors = everybody;  // or report_loss() corrects
}

}  // namespace tarpon
