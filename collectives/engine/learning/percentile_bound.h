// BoundRule::optireduce: the published rule (NSDI'25, section on UBT), for comparison. Each of the
// two stages has half of the 95th percentile of the first 20 calls, which run exact.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "collectives/engine/learning/bound_estimate.h"
#include "collectives/engine/learning/recent_values.h"

namespace tarpon {

class PercentileBound final : public BoundEstimate {
 public:
  static constexpr std::uint32_t kCalibration = 20;  // calls

  /// The caller's bound has no effect.
  Duration whole(const BoundedCall& call, Duration left) const override;
  Duration gather(const BoundedCall&, Duration whole) const override { return whole / 2; }
  EarlyLoss early_loss(const BoundSample& sample) const override {
    return {sample.lost, 0.001, 0.0001};
  }

  /// Learns from an exact call. Calls of its size class after the first 20 have no effect.
  void learn(const BoundSample& sample);

 private:
  std::map<std::size_t, RecentValues> times_;  // by size class: seconds per scaled byte
};

}  // namespace tarpon
