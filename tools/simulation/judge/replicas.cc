// The oracle over all ranks of a bounded call: how far their results may differ.
#include <fmt/format.h>

#include <algorithm>

#include "collectives/engine/schedules/tar_shards.h"
#include "tools/reference/reference.h"
#include "tools/simulation/simulated_call.h"

namespace tarpon {
namespace {

using Runs = std::vector<ContributorRun>;

class Replicas {
 public:
  Replicas(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result)
      : plan_(plan), call_(call), result_(result), runs_(plan.ranks) {}

  void run() {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (!has_result(rank)) continue;
      const Report& report = call_.pending[rank]->report;
      runs_[rank] = runs_of(report, positions_of(report, call_.count), plan_.ranks);
      for (Rank other = 0; other < rank; ++other) compare(rank, other);
    }
    if (loses_nothing() && plan_.mechanisms.retention) judge_owners();
  }

 private:
  void violate(Rank rank, const std::string& what) {
    result_.violations.push_back(fmt::format("tag {} {} {} rank {}: {}", call_.tag,
                                             call_.live ? "live call" : "call", call_.number, rank,
                                             what));
  }

  bool has_result(Rank rank) const {
    return call_.pending[rank] && call_.pending[rank]->done &&
           tarpon::has_result(call_.pending[rank]->report.status);
  }

  /// Checks that two ranks have the same contributors of an element, unless one of them has none.
  void compare(Rank rank, Rank other) {
    auto a = runs_[rank].begin();
    auto b = runs_[other].begin();
    while (a != runs_[rank].end() && b != runs_[other].end()) {
      const std::uint64_t first = std::max(a->first, b->first);
      const std::uint64_t a_end = a->first + a->count;
      const std::uint64_t b_end = b->first + b->count;
      if (first < std::min(a_end, b_end) && a->contributors != b->contributors &&
          a->contributors != 0 && b->contributors != 0) {
        return violate(rank, fmt::format("element {} is of {:#x} here and of {:#x} at rank {}",
                                         first, a->contributors, b->contributors, other));
      }
      if (a_end <= b_end) ++a;
      if (b_end <= a_end) ++b;
    }
  }

  /// Whether nothing happens to packets, so that ranks may only be late.
  bool loses_nothing() const {
    constexpr std::uint64_t kRoomyBuffer = 1 << 20;
    FaultSet harmless;
    for (const FaultKind kind :
         {FaultKind::pause, FaultKind::slow_rank, FaultKind::drift, FaultKind::starved_frames,
          FaultKind::two_jobs, FaultKind::nonfinite}) {
      harmless.set(static_cast<std::size_t>(kind));
    }
    return (plan_.on & ~harmless).none() && !plan_.links && plan_.receive_bytes >= kRoomyBuffer;
  }

  bool has_something(Rank rank, const Range& shard) const {
    return std::any_of(runs_[rank].begin(), runs_[rank].end(), [&](const ContributorRun& run) {
      return run.contributors != 0 && run.first < shard.end() &&
             run.first + run.count > shard.first;
    });
  }

  /// Whether no rank could tell `owner` that it was late: only the victim had ended the call before
  /// `owner` did, and the victim stood still.
  bool could_not_hear(Rank owner) const {
    const Time end = call_.ended[owner];
    const bool paused = has(plan_.on, FaultKind::pause) && plan_.pause.contains(end);
    if (!paused || owner == plan_.victim) return false;
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (rank == owner || rank == plan_.victim) continue;
      if (has_result(rank) && call_.ended[rank] < end) return false;
    }
    return true;
  }

  /// Checks that a late owner does not keep a shard that all others count as missing.
  void judge_owners() {
    if (call_.pending[0] && call_.pending[0]->report.coded) return;  // shards are no ranges
    const std::uint32_t turn = plan_.mechanisms.rotation ? call_.number : 0;
    for (Rank owner = 0; owner < plan_.ranks; ++owner) {
      const Range shard =
          tar_shards(plan_.ranks, owner, turn, call_.count, element_bytes(call_.type), call_.shares)
              .own;
      if (!has_something(owner, shard) || could_not_hear(owner)) continue;
      bool alone = true;
      for (Rank rank = 0; rank < plan_.ranks; ++rank) {
        if (rank != owner) alone &= has_result(rank) && !has_something(rank, shard);
      }
      if (alone)
        violate(owner, fmt::format("alone has elements {} to {}", shard.first, shard.end() - 1));
    }
  }

  const SimulationPlan& plan_;
  const SimulatedCall& call_;
  SimulationResult& result_;
  std::vector<Runs> runs_;  // by rank; none of those without a result
};

}  // namespace

void judge_replicas(const SimulationPlan& plan, const SimulatedCall& call,
                    SimulationResult& result) {
  // Each element of a reduce_scatter is at one rank alone. Ranks that keep the previous elements of
  // an all_gather may differ.
  if (call.bounded && !call.has_one_stage() && !call.mismatched) Replicas(plan, call, result).run();
}

}  // namespace tarpon
