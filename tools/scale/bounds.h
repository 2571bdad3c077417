// When the stages of the next bounded operation close: t_B and t_C of OptiReduce (NSDI'25), as far
// as a fixed size of the bucket needs them.
//
//   t_B   adaptive: the first kCalibration operations repair every loss and have no bound; t_B of a
//         stage is the median of their typical times x kMargin. Typical is what 99 % of a stage's
//         packets took: a straggler in a hundred ranks does not set the bound.
//   t_C   EWMA, weight 0.95 on the old value, of what the whole stage would have taken (median over
//         ranks); it starts with the calibration's median.
//   wait  after the last tail mark x % of t_C. x starts at 10; it doubles, to at most 50, where
//   more
//         than 0.1 % of the packets came after an early close, and falls by 1, to at least 1, below
//         0.01 %. The published loop reads all loss; what the network lost no waiting brings back,
//         and at 0.1 % of random loss it would stay at 50.
//
// To add a kind of bound: its rule in next() and learn(), and its name in the command's --bound.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tools/scale/bounded_flow.h"

namespace tarpon::scale {

inline constexpr std::uint32_t kCalibration = 20;  // operations
inline constexpr double kMargin = 1.25;

class Bounds {
 public:
  /// `fixed`: of each stage; nullopt: adaptive.
  explicit Bounds(std::optional<Duration> fixed);

  Limits next() const;
  /// Whether the next operation is a calibration, which results should not count.
  bool calibrating() const { return calibrations_left_ > 0; }
  void learn(const BoundedOutcome& outcome);

  Duration bound(std::size_t stage) const { return bound_[stage]; }
  double wait_share() const { return wait_share_; }

 private:
  void settle();

  std::uint32_t calibrations_left_;
  std::array<std::vector<Duration>, kStages> typical_, closed_;
  std::array<Duration, kStages> bound_{};
  std::array<double, kStages> early_ns_{};  // t_C
  double wait_share_ = 0.10;
};

}  // namespace tarpon::scale
