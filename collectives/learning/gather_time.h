// g, the time that a call needs after its scatter, learnt from the latest 100 calls of one kind.
//
// A call that ends at D closes its scatter at D - g. That cuts every scatter that takes longer than
// D - g, and every gather that takes longer than g. The sum of the times that are cut from the
// known calls is smallest where as many scatters are cut as gathers. That is the median of two sets
// joined: all gather times, and all D - (scatter time). The median may be a range. g is the lower
// end of the range plus a margin, so that the scatter closes as late as the gather allows.
//
// The unit of time is the caller's. Not thread-safe. split() costs about a microsecond.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "collectives/learning/recent_values.h"

namespace tarpon {

class GatherTime {
 public:
  /// One call at this rank. `scatter`: from the clock's start to the end of its scatter. `gather`:
  /// from there until all peers have confirmed its shard, or until it has the whole result if that
  /// comes first, plus the time of decoding. A later wait for the shards of other owners does not
  /// count: an earlier end of this rank's scatter would not shorten it.
  void learn(double scatter, double gather) {
    scatters_.push(scatter);
    gathers_.push(gather);
  }

  bool empty() const { return gathers_.empty(); }

  /// g of a call with the bound `whole`, at most half of it. The margin is `margin`, or half of the
  /// range where that is less. REQUIRES: !empty().
  double split(double whole, double margin) const {
    std::array<double, 2 * kCalls> all;
    const std::size_t calls = gathers_.size();
    std::copy(gathers_.values().begin(), gathers_.values().end(), all.begin());
    std::transform(scatters_.values().begin(), scatters_.values().end(), all.begin() + calls,
                   [whole](double scatter) { return whole - scatter; });
    const auto upper = all.begin() + calls;
    const auto end = upper + calls;
    std::nth_element(all.begin(), upper, end);
    const double low = *std::max_element(all.begin(), upper);
    return std::clamp(low + std::min(margin, (*upper - low) / 2), 0.0, whole / 2);
  }

 private:
  static constexpr std::size_t kCalls = 100;

  RecentValues scatters_{kCalls};
  RecentValues gathers_{kCalls};  // of the same calls, in the same order
};

}  // namespace tarpon
