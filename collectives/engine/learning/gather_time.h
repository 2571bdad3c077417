// g, the time that a call needs after its scatter, learnt from the latest 100 calls of one kind.
//
// A call that ends at D closes its scatter at D - g. Only a call whose scatter takes longer than
// D - g loses by that. A longer g cuts more of its scatter, and a shorter g cuts its gather. A slot
// that is cut from the scatter lacks one contribution. A slot that is cut from the gather lacks the
// contributions of all N ranks. So the loss is smallest where 1 of N such gathers is cut.
//
// Gathers after short scatters take longer, since both stages share links and processors. They tell
// nothing about gathers after late scatters. So g comes from the calls whose scatters are among the
// longest quarter.
//
// The unit of time is the caller's. Not thread-safe. split() costs about a microsecond.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "collectives/engine/learning/recent_values.h"

namespace tarpon {

class GatherTime {
 public:
  /// REQUIRES: ranks >= 1.
  explicit GatherTime(std::uint32_t ranks) : ranks_(ranks) {}

  /// One call at this rank. `scatter`: from the clock's start to the end of its scatter. `gather`:
  /// from there until all peers have confirmed its shard, or until it has the whole result if that
  /// comes first, plus the time of decoding. A later wait for the shards of other owners does not
  /// count: an earlier end of this rank's scatter would not shorten it.
  void learn(double scatter, double gather) {
    scatters_.push(scatter);
    gathers_.push(gather);
  }

  bool empty() const { return gathers_.empty(); }

  /// g of a call with the bound `whole`, at most `whole` / 2. It includes `margin`, or half of the
  /// time between the longest scatter that ends in time and the gather, if that half is less. Only
  /// scatters that `whole` does not cut count as the longest. Otherwise a rank whose scatters are
  /// always longer would have no time to send its shard. REQUIRES: !empty().
  double split(double whole, double margin) const {
    const double late = scatters_.quantile(1 - kLate);
    std::array<double, kCalls> gathers;
    std::size_t count = 0;
    for (std::size_t call = 0; call < scatters_.size(); ++call) {
      if (scatters_.values()[call] >= late) gathers[count++] = gathers_.values()[call];
    }
    const std::size_t cut = std::min<std::size_t>(count / ranks_, count - 1);
    const auto at = gathers.begin() + static_cast<std::ptrdiff_t>(count - 1 - cut);
    std::nth_element(gathers.begin(), at, gathers.begin() + static_cast<std::ptrdiff_t>(count));
    const double last_end = whole - *at;
    double in_time = 0;
    for (const double scatter : scatters_.values()) {
      if (scatter <= last_end) in_time = std::max(in_time, scatter);
    }
    const double left = std::max(0.0, last_end - in_time);
    return std::clamp(*at + std::min(margin, left / 2), 0.0, whole / 2);
  }

 private:
  static constexpr std::size_t kCalls = 100;
  static constexpr double kLate = 0.25;  // share of the calls

  const std::uint32_t ranks_;
  RecentValues scatters_{kCalls};
  RecentValues gathers_{kCalls};  // of the same calls, in the same order
};

}  // namespace tarpon
