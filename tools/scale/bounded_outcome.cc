// What an operation of BoundedFlow came to: medians over ranks, and the account of what is missing.
#include <algorithm>

#include "tools/scale/bounded_flow.h"
#include "tools/scale/quantiles.h"

namespace tarpon::scale {

StageOutcome BoundedFlow::stage_outcome(std::size_t stage) const {
  StageOutcome result;
  std::vector<Duration> typical, closed;
  std::uint64_t lost = 0, cut = 0, cut_early = 0, ranks = 0;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (late_[rank] != 0) continue;
    ++ranks;
    const Inbox& inbox = inbox_[stage][rank];
    const std::uint64_t missing = expected_ - inbox.arrived - inbox.lost;
    lost += inbox.lost;
    cut += missing;
    const Duration elapsed = inbox.closed_at - inbox.start;
    Duration whole = elapsed;
    if (inbox.close == Close::early) {
      ++result.early;
      cut_early += missing;
      whole = Duration(static_cast<std::int64_t>(static_cast<double>(elapsed.count()) *
                                                 static_cast<double>(expected_) /
                                                 static_cast<double>(inbox.arrived)));
    }
    if (inbox.close == Close::bound) ++result.bound;
    closed.push_back(whole);
    if (inbox.nearly_all == Time{}) continue;
    typical.push_back(std::max(Duration{}, (inbox.nearly_all - inbox.start) * 100 / 99));
  }
  const double packets =
      static_cast<double>(expected_) * static_cast<double>(std::max<std::uint64_t>(1, ranks));
  result.lost = static_cast<double>(lost) / packets;
  result.cut = static_cast<double>(cut) / packets;
  result.cut_early = static_cast<double>(cut_early) / packets;
  result.typical = median(typical);
  result.closed = median(closed);
  return result;
}

BoundedOutcome BoundedFlow::outcome(Time start) const {
  BoundedOutcome result;
  result.completion = finished_ - start;
  result.idle = finished_;
  const double whole = static_cast<double>(shard_packets_) * options_.ranks;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (late_[rank] != 0) {
      ++result.late;
      continue;
    }
    const double lost = std::max(0.0, 1 - value_[rank] / whole);
    result.lost_mean += lost;
    result.lost_worst = std::max(result.lost_worst, lost);
  }
  if (result.late < options_.ranks) result.lost_mean /= options_.ranks - result.late;
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    result.stages[stage] = stage_outcome(stage);
  }
  return result;
}

}  // namespace tarpon::scale
