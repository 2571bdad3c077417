// When the stages of the next bounded operation close: the rules of
// collectives/engine/learning/bounds.h, reduced to one bucket size, and with one learner instead of
// one per rank.
//
//   D     time of the whole operation: given, or learnt by TargetBound from what the median rank
//         needed and what the worst rank lost. Until D is known operations have no bound and repair
//         every loss.
//   g     the scatter ends g before the operation: by GatherTime, from the medians over ranks.
//         While nothing is known g is D / 4.
//   wait  after the last tail mark x % of the usual time of the stage, the median of the last 9
//         operations. x starts at 10; it doubles, to at most 50, where early closing cut more than
//         a tenth of the target, and falls by 1, to at least 1, below a hundredth.
//
// If ranks are late, the operation counts with the time until their shards would have come, at most
// twice its own time. The model has no scheduler, so D has no slack above the median and `wait` has
// no lower limit.
//
// To add a kind of bound: its rule in next() and learn(), and its name in the command's --bound.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "collectives/engine/learning/gather_time.h"
#include "collectives/engine/learning/recent_values.h"
#include "collectives/engine/learning/target_bound.h"
#include "tools/scale/bounded_flow.h"

namespace tarpon::scale {

inline constexpr std::uint32_t kCalibration = 20;  // operations

class BoundsModel {
 public:
  /// `fixed`: D; nullopt: learnt. `target`: mean share that a learnt D may lose.
  /// REQUIRES: 0 < target < 1, ranks >= 1.
  BoundsModel(std::optional<Duration> fixed, double target, std::uint32_t ranks);

  Limits next() const;
  /// Whether the next operation is one of the first of a learnt bound, which results should not
  /// count.
  bool calibrating() const { return calibrations_left_ > 0; }
  void learn(const BoundedOutcome& outcome);

  double wait_share() const { return wait_share_; }

 private:
  void adapt_wait(double cut_early);

  const std::optional<Duration> fixed_;
  const double target_;
  std::uint32_t calibrations_left_;
  TargetBound learnt_;  // nanoseconds, as all here
  GatherTime gather_;
  std::array<RecentValues, kStages> usual_{RecentValues(9), RecentValues(9)};
  double wait_share_ = 0.10;
};

}  // namespace tarpon::scale
