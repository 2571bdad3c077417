// Shares that follow links of unequal speed, for the calls of one tag: the rule of learnt shares
// (collectives/driver/share_plan.h) over drawn measurements. Every call is a round of its own, so
// that few calls see many lists. One rank, the victim, may miss the measurements of a round: then
// it has other shares than the others, or not, until all ranks begin anew.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/driver/share_plan.h"
#include "transport/random.h"

namespace tarpon {

class ShareLearner {
 public:
  struct Drawn {
    Shares shares;
    Shares of_victim;
  };

  /// REQUIRES: as SharePlan.
  ShareLearner(std::uint64_t seed, std::uint32_t ranks);

  /// Returns the shares of the next call.
  Drawn next();

  /// From now on the victim may miss rounds.
  void fail_exchanges() { fails_ = true; }
  /// Before the next call the victim gets what it missed, and misses nothing any more.
  void heal();

 private:
  void draw_speeds();
  double time_with(const Shares& shares) const;

  Random random_;
  Random failures_;
  SharePlan plan_;
  SharePlan victim_plan_;
  bool fails_ = false;
  std::vector<double> speeds_;  // of the ranks' links
  std::size_t late_rank_ = 0;
  double lag_ = 0;  // how much later than the others it begins, in units of time_with()
};

}  // namespace tarpon
