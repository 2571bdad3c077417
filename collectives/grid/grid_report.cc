#include "collectives/grid/grid_report.h"

#include <algorithm>
#include <utility>

#include "collectives/grid/global_names.h"

namespace tarpon::grid {
namespace {

/// How bad a call with a result is.
int badness(Status status) {
  if (status == Status::complete) return 0;
  return status == Status::partial ? 1 : 2;
}

void add_each(std::vector<Rank>& to, const std::vector<Rank>& more) {
  for (const Rank rank : more) {
    if (std::find(to.begin(), to.end(), rank) == to.end()) to.push_back(rank);
  }
  std::sort(to.begin(), to.end());
}

void add(LossCauses& to, const LossCauses& from, double weight) {
  to.cut += weight * from.cut;
  to.network += weight * from.network;
  to.at_owner += weight * from.at_owner;
  to.late_ranks += weight * from.late_ranks;
  to.void_shards += weight * from.void_shards;
  to.gone += weight * from.gone;
}

void add(PeerReport& to, const PeerReport& from) {
  for (std::size_t stage = 0; stage < to.bytes_expected.size(); ++stage) {
    to.bytes_expected[stage] += from.bytes_expected[stage];
    to.bytes_received[stage] += from.bytes_received[stage];
  }
  to.last_heard = from.last_heard;
}

}  // namespace

GridReport::GridReport(const GridParts& parts, Report empty, std::uint64_t slice)
    : parts_(parts), slice_(slice), report_(std::move(empty)) {
  report_.algorithm = Algorithm::hosts;
  report_.host_of = parts.layout.hosts_by_rank();
}

std::vector<Rank> GridReport::of_hosts(const std::vector<Rank>& hosts) const {
  std::vector<Rank> ranks;
  for (const Rank host : hosts) {
    const std::vector<Rank>& there = parts_.layout.host(host);
    ranks.insert(ranks.end(), there.begin(), there.end());
  }
  return ranks;
}

void GridReport::add(const Report& rail, std::uint64_t elements) {
  const std::vector<Rank> ranks = parts_.rail_ranks();
  const bool first = report_.peers.empty();
  const double weight =
      slice_ == 0 ? 0 : static_cast<double>(elements) / static_cast<double>(slice_);
  if (first) {
    report_.operation = rail.operation;
    report_.clock_start = rail.clock_start;
    report_.first_missed = rail.first_missed;
    report_.rescale = rail.rescale;
    report_.peers.resize(parts_.layout.world_size());
  }
  if (!failed_ && badness(rail.status) > badness(report_.status)) report_.status = rail.status;
  report_.mode = rail.mode;
  report_.epoch = rail.epoch;
  report_.paused += rail.paused;
  report_.bytes_sent += rail.bytes_sent;
  report_.bytes_received += rail.bytes_received;
  report_.bytes_fetched += rail.bytes_fetched;
  for (std::size_t host = 0; host < rail.peers.size(); ++host) {
    grid::add(report_.peers[ranks[host]], rail.peers[host]);
  }
  if (!rail.missing.empty()) {
    report_.missing.resize(parts_.layout.world_size());
    for (std::size_t host = 0; host < rail.missing.size(); ++host) {
      for (const Rank rank : parts_.layout.host(static_cast<std::uint32_t>(host))) {
        report_.missing[rank] += rail.missing[host];
      }
    }
  }
  report_.bound = std::max(report_.bound, rail.bound);
  report_.held = std::max(report_.held, rail.held);
  report_.in_doubt |= rail.in_doubt;
  report_.lost_fraction += weight * rail.lost_fraction;
  report_.lost_stage1 += weight * rail.lost_stage1;
  report_.lost_stage2 += weight * rail.lost_stage2;
  grid::add(report_.causes, rail.causes, weight);
  report_.stages = rail.stages;
  add_each(report_.void_shards, global_ranks(rail.void_shards, ranks));
  // A late rank is late with the sum of its host.
  add_each(report_.late_ranks, of_hosts(rail.late_ranks));
  report_.nonfinite |= rail.nonfinite;
  report_.operations_missed = std::max(report_.operations_missed, rail.operations_missed);
  if (!failed_ && report_.detail.empty()) report_.detail = global_text(rail.detail, ranks);
}

void GridReport::fail(const Report& report, const std::vector<Rank>& ranks, CallStage stage) {
  if (failed_) return;
  fail(report.status, report.abort_reason, global_ranks(report.blamed, ranks),
       global_text(report.detail, ranks));
  report_.stage = stage;
  report_.operation = report.operation;
  report_.late_ranks = global_ranks(report.late_ranks, ranks);
  report_.peers.resize(parts_.layout.world_size());
  for (std::size_t rank = 0; rank < report.peers.size(); ++rank) {
    grid::add(report_.peers[ranks[rank]], report.peers[rank]);
  }
}

void GridReport::fail(Status status, AbortReason reason, const std::vector<Rank>& blamed,
                      std::string detail) {
  if (failed_) return;
  failed_ = true;
  report_.status = status;
  report_.abort_reason = reason;
  report_.blamed = blamed;
  report_.detail = std::move(detail);
}

void GridReport::blame(const Ending& ending) {
  const bool aborted = failed_ && report_.status == Status::aborted;
  if (!aborted || report_.abort_reason != AbortReason::given_up) return;
  failed_ = false;
  fail(ending);
}

void GridReport::finish(Duration elapsed) {
  report_.elapsed = elapsed;
  if (!failed_) report_.stage = CallStage::result;
}

}  // namespace tarpon::grid
