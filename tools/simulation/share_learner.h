// Shares that follow links of unequal speed, for the calls of one tag: the rule of learnt shares
// (collectives/driver/share_plan.h) over drawn measurements. Every call is a round of its own, so
// that few calls see many lists.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/driver/share_plan.h"
#include "transport/random.h"

namespace tarpon {

class ShareLearner {
 public:
  /// REQUIRES: as SharePlan.
  ShareLearner(std::uint64_t seed, std::uint32_t ranks);

  /// Returns the shares of the next call.
  Shares next();

 private:
  void draw_speeds();
  double time_with(const Shares& shares) const;

  Random random_;
  SharePlan plan_;
  std::vector<double> speeds_;  // of the ranks' links
  std::size_t late_rank_ = 0;
  double lag_ = 0;  // how much later than the others it begins, in units of time_with()
};

}  // namespace tarpon
