#include "tools/job/outcome.h"

#include <chrono>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

double us(Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

}  // namespace

nlohmann::json outcome_json(const Report& report) {
  nlohmann::json peers = nlohmann::json::array();
  for (const PeerReport& peer : report.peers) {
    peers.push_back({{"bytes_expected", peer.bytes_expected},
                     {"bytes_received", peer.bytes_received},
                     {"contributors", ranks_of(peer.contributors)},
                     {"last_heard_us", peer.last_heard ? nlohmann::json(us(*peer.last_heard))
                                                       : nlohmann::json(nullptr)}});
  }
  return {{"status", std::string(name(report.status))},
          {"detail", report.detail},
          {"tag", report.tag},
          {"operation", report.operation},
          {"stage", std::string(name(report.stage))},
          {"elapsed_us", us(report.elapsed)},
          {"peers", peers},
          {"late_ranks", report.late_ranks},
          {"blamed", report.blamed},
          {"void_shards", report.void_shards},
          {"bytes_fetched", report.bytes_fetched},
          {"first_missed", report.first_missed},
          {"operations_missed", report.operations_missed}};
}

}  // namespace tarpon
