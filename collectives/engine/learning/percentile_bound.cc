#include "collectives/engine/learning/percentile_bound.h"

#include <algorithm>

#include "collectives/engine/learning/seconds.h"

namespace tarpon {
namespace {

constexpr double kQuantile = 0.95;
constexpr Duration kLeastStage = 1ms;

}  // namespace

Duration PercentileBound::whole(const BoundedCall& call, Duration left) const {
  const auto known = times_.find(size_class(call.kind.bytes));
  if (known == times_.end()) return left;
  const double seconds = known->second.quantile(kQuantile) * scaled(call.kind.bytes);
  return std::min(std::max(to_duration(seconds), 2 * kLeastStage), left);
}

void PercentileBound::learn(const BoundSample& sample) {
  RecentValues& times =
      times_.try_emplace(size_class(sample.kind.bytes), kCalibration).first->second;
  if (times.size() == kCalibration) return;
  times.push(to_seconds(sample.elapsed) / scaled(sample.kind.bytes));
}

}  // namespace tarpon
