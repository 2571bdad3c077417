// The outcome of an operation of BoundedFlow: medians over ranks, and the account of what is
// missing.
#include <algorithm>

#include "tools/scale/bounded_flow.h"
#include "tools/scale/quantiles.h"

namespace tarpon::scale {
namespace {

/// The time that a stage or an operation would have taken for everything, if the share `arrived`
/// took `time`; at most twice `time`.
Duration grown(Duration time, double arrived) {
  constexpr double kMaxGrowth = 2;
  const double factor = std::min(kMaxGrowth, 1 / std::max(arrived, 1e-9));
  return Duration(static_cast<std::int64_t>(static_cast<double>(time.count()) * factor));
}

}  // namespace

StageOutcome BoundedFlow::stage_outcome(std::size_t stage) const {
  StageOutcome result;
  std::vector<Duration> closed;
  std::uint64_t lost = 0, cut = 0, cut_early = 0;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (late_[rank] != 0) continue;
    const Inbox& inbox = inbox_[stage][rank];
    const std::uint64_t missing = expected_ - inbox.arrived - inbox.lost;
    lost += inbox.lost;
    cut += missing;
    if (inbox.close == Close::early) {
      ++result.early;
      cut_early += missing;
    }
    if (inbox.close == Close::bound) ++result.bound;
    closed.push_back(inbox.closed_at - clock_);
  }
  const double packets =
      static_cast<double>(expected_) * static_cast<double>(std::max<std::size_t>(1, closed.size()));
  result.lost = static_cast<double>(lost) / packets;
  result.cut = static_cast<double>(cut) / packets;
  result.cut_early = static_cast<double>(cut_early) / packets;
  result.closed = std::max(Duration{}, median(closed));
  return result;
}

void BoundedFlow::count_losses(BoundedOutcome& result) const {
  const double whole = static_cast<double>(shard_packets_) * options_.ranks;
  const double in_time = options_.ranks - result.late;
  // What late ranks contribute or own does not count in lost_in_time.
  const double had = in_time * in_time / (static_cast<double>(options_.ranks) * options_.ranks);
  std::vector<Duration> times, scatters, gathers;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (late_[rank] != 0) continue;
    const double present = value_[rank] / whole;
    result.lost_mean += std::max(0.0, 1 - present) / in_time;
    result.lost_worst = std::max(result.lost_worst, 1 - present);
    const double lost = std::max(0.0, had - present);
    result.lost_in_time = std::max(result.lost_in_time, lost);
    const Inbox& scatter = inbox_[0][rank];
    const Inbox& gather = inbox_[1][rank];
    const auto share = [this](const Inbox& inbox) {
      return static_cast<double>(inbox.arrived) / static_cast<double>(expected_);
    };
    times.push_back(grown(gather.closed_at - clock_, 1 - lost));
    scatters.push_back(grown(scatter.closed_at - clock_, share(scatter)));
    gathers.push_back(grown(gather.closed_at - scatter.closed_at, share(gather)));
  }
  result.median_time = std::max(Duration{}, median(times));
  result.scatter = std::max(Duration{}, median(scatters));
  result.gather = median(gathers);
}

BoundedOutcome BoundedFlow::outcome(Time start, const std::vector<Episode>& episodes) const {
  BoundedOutcome result;
  result.completion = finished_ - start;
  result.idle = finished_;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (late_[rank] == 0) continue;
    ++result.late;
    result.last_late_start =
        std::max(result.last_late_start, start + begin_of(episodes[rank]) - clock_);
  }
  count_losses(result);
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    result.stages[stage] = stage_outcome(stage);
  }
  return result;
}

}  // namespace tarpon::scale
