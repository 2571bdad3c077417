// A bound whose mean lost share stays at or below a target, learnt from the calls of one kind.
//
// A bound D loses about max(0, 1 - D / X) of a call that would take X. The shortest bound that the
// target allows is the smallest D for which the mean of that over the known calls is c x target.
// The target is a ceiling: of all bounds whose mean time and 99th percentile are within 3 % of
// those of the shortest one, the longest is taken. It loses least: more loss would buy no time. X
// of a call that lost something is estimated: its time divided by the share that arrived, at most
// doubled.
//
// - Samples are kept as X / g, where g is the geometric mean of the latest 100 calls; D is scaled
//   by g. So 1,000 samples describe the tail, and a new level is followed within 100 calls.
// - c corrects errors of the estimate. It follows the sum of 1 - lost / target over all calls: how
//   much more than the target they have lost. It is at most 1, and falls faster than it rises.
// - D is at least 1.1 x the median and, once 50 calls are known, the 90th percentile of the latest
//   100: below that there is no tail to cut. While D is that floor, calls that lost nothing do not
//   change c.
// - After a call that lost more than ten times the target D is doubled, and comes back within some
//   ten calls.
// - Five calls in a row that are longer than D, or than 95 % of the latest 100, are a new level:
//   then only they are known, and c is 1.
//
// The constants were chosen in simulations of quiet, lognormal, two-mode and tenfold times, steps,
// a drift and load. tests/collectives/engine/target_bound_test.cc repeats them against the exact
// answer, and over targets from 0.1 to 5 %: a larger one makes no call longer.
//
// Not thread-safe. learn() costs about two microseconds.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "collectives/engine/learning/recent_values.h"

namespace tarpon {

class TargetBound {
 public:
  /// REQUIRES: 0 < target < 1.
  explicit TargetBound(double target) : target_(target) {}

  /// Changes the target of later calls. The correction c stays, since it is relative to the target.
  /// REQUIRES: 0 < target < 1.
  void set_target(double target);

  /// Learns from a call that took `time`, in a unit of the caller's choice, and lacks `lost`.
  /// REQUIRES: time > 0; 0 <= lost <= 1.
  void learn(double time, double lost);

  /// Takes the share that a call lost because of its bound: the largest of any rank. Has no effect
  /// while no bound is known.
  void account(double lost);

  /// nullopt before nine calls, or five of a new level, are known. In the unit of learn().
  std::optional<double> bound() const { return bound_; }

  /// Of the latest 100 calls. REQUIRES: bound() is known.
  double median() const;

  /// Whether the bound is the floor: 1.1 x the median, or the 90th percentile.
  bool at_floor() const { return at_floor_; }

 private:
  void push(double sample);
  void start_anew();
  void solve();
  double unusual() const;
  double typical() const;
  double floor() const;
  double shortest(double share) const;
  double least_loss(double ratio) const;

  double target_;
  RecentValues latest_{100};    // logarithms of X
  RecentValues ratios_{1000};   // X / g: 0.1 % of loss is one tenfold call in a thousand
  std::vector<double> sorted_;  // the same, the smallest first
  std::vector<double> above_;   // X of the latest calls, each above unusual()
  std::size_t least_known_ = 9;
  double debt_ = 0;        // sum of 1 - lost / target, limited
  double correction_ = 1;  // c
  double alarm_ = 1;       // factor of the bound; above 1 after a call that lost much
  bool at_floor_ = false;
  std::optional<double> bound_;
};

}  // namespace tarpon
