#include "tools/scale/bounds_model.h"

#include <algorithm>

namespace tarpon::scale {
namespace {

constexpr Duration kGatherMargin = 2ms;  // as in collectives/engine/learning/learnt_bound.cc
constexpr double kMaxGrowth = 2;

double ns(Duration duration) {
  return static_cast<double>(duration.count());
}

Duration duration(double ns) {
  return Duration(static_cast<std::int64_t>(ns));
}

}  // namespace

BoundsModel::BoundsModel(std::optional<Duration> fixed, double target, std::uint32_t ranks)
    : fixed_(fixed),
      target_(target),
      calibrations_left_(fixed ? 0 : kCalibration),
      learnt_(target),
      gather_(ranks) {}

Limits BoundsModel::next() const {
  Limits limits;
  limits.exact = !fixed_ && !learnt_.bound();
  if (limits.exact) return limits;
  limits.whole = fixed_ ? *fixed_ : duration(*learnt_.bound());
  limits.gather = limits.whole / 4;
  if (!gather_.empty()) {
    limits.gather = duration(gather_.split(ns(limits.whole), ns(kGatherMargin)));
  }
  if (usual_[0].empty()) return limits;
  const double whole = usual_[1].quantile(0.5);
  limits.early_wait[0] = duration(wait_share_ * std::min(usual_[0].quantile(0.5), whole));
  limits.early_wait[1] = duration(wait_share_ * whole);
  return limits;
}

void BoundsModel::learn(const BoundedOutcome& outcome) {
  if (calibrations_left_ > 0) --calibrations_left_;
  if (outcome.median_time == Duration{}) return;  // all ranks were late
  double cut_early = 0;
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    usual_[stage].push(ns(outcome.stages[stage].closed));
    cut_early = std::max(cut_early, outcome.stages[stage].cut_early);
  }
  gather_.learn(ns(outcome.scatter), ns(outcome.gather));
  adapt_wait(cut_early);
  learnt_.account(outcome.lost_in_time);
  double time = ns(outcome.median_time);
  if (outcome.late > 0) {
    const double most = std::max(time, kMaxGrowth * ns(outcome.stages[1].closed));
    time = std::clamp(ns(outcome.last_late_start + outcome.gather), time, most);
  }
  learnt_.learn(time, 0);
}

void BoundsModel::adapt_wait(double cut_early) {
  if (cut_early > target_ / 10) wait_share_ = std::min(0.50, wait_share_ * 2);
  if (cut_early < target_ / 100) wait_share_ = std::max(0.01, wait_share_ - 0.01);
}

}  // namespace tarpon::scale
