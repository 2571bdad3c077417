// g, the time that a call needs after its scatter, learnt from the latest 100 calls of one kind.
//
// A call that ends at D closes its scatter at D - g. That matters to calls whose scatters take
// longer: the longer g, the more contributions they lack. A gather that takes longer than g is then
// cut as well, and a slot of the result that is cut lacks the contributions of all N ranks. So the
// loss is smallest where 1 / N of the gathers that follow such a scatter are cut. They are the
// gathers of the quarter of the known calls whose scatters took longest. Gathers that follow short
// scatters take longer, since packets of both stages share the links.
//
// The unit of time is the caller's. Not thread-safe. split() costs about a microsecond.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "collectives/learning/recent_values.h"

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

  /// g of a call with the bound `whole`: at most half of it. `margin` is added to what is known, or
  /// half of what the longest known scatter leaves where that is less. REQUIRES: !empty().
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
    const double left = whole - scatters_.quantile(1) - *at;
    return std::clamp(*at + std::min(margin, std::max(0.0, left / 2)), 0.0, whole / 2);
  }

 private:
  static constexpr std::size_t kCalls = 100;
  static constexpr double kLate = 0.25;  // share of the calls

  const std::uint32_t ranks_;
  RecentValues scatters_{kCalls};
  RecentValues gathers_{kCalls};  // of the same calls, in the same order
};

}  // namespace tarpon
