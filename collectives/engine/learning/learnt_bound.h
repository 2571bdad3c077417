// BoundRule::learnt: a bound whose mean lost share stays below the target of the
// communicator (target_bound.h). BoundRule::automatic takes the caller's bound in its place.
//
// A call may take all of its deadline until 50 calls of its size class are known: a bound that is
// learnt from fewer calls would cut usual ones. Times are scaled by bytes within a size class. A
// kind that is not known takes the D of a known one of its class, and the g of the nearest known
// one. D is at least 2 ms above the median of its kind, because a rank may wait that long for a
// core. That matters for calls shorter than 20 ms, to which TargetBound leaves less.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "collectives/engine/learning/bound_estimate.h"
#include "collectives/engine/learning/gather_time.h"
#include "collectives/engine/learning/target_bound.h"

namespace tarpon {

class LearntBound final : public BoundEstimate {
 public:
  LearntBound(std::uint16_t world_size, double loss_target)
      : world_size_(world_size), loss_target_(loss_target) {}

  /// At most the caller's bound, if there is one.
  Duration whole(const BoundedCall& call, Duration left) const override;
  /// By the calls of its kind (gather_time.h). While none is known: a tenth of `whole`, at least
  /// 2 ms and at most half of `whole`.
  Duration gather(const BoundedCall& call, Duration whole) const override;
  /// The share of late packets, held against a tenth and a hundredth of the target.
  EarlyLoss early_loss(const BoundSample& sample) const override {
    return {sample.early_lost, loss_target_ / 10, loss_target_ / 100};
  }

  void set_loss_target(double share);
  double loss_target() const { return loss_target_; }

  /// Learns g from a bounded call, whatever ranks it lacks.
  void learn_gather(const BoundSample& sample);
  /// Learns D from a bounded call. `lost`: the share that counts against the target. `limit`: the
  /// caller's bound, if any.
  void learn(const BoundSample& sample, double lost, std::optional<Duration> limit);

 private:
  /// What the calls of one kind have taught, in seconds per scaled byte.
  struct Series {
    Series(std::uint16_t world_size, double loss_target) : bound(loss_target), gather(world_size) {}
    /// D for `size` scaled bytes, in seconds. REQUIRES: bound.bound() is known.
    double whole(double size) const;

    std::uint32_t calls = 0;
    TargetBound bound;
    GatherTime gather;
  };

  /// An estimate of a call from the calls of a near kind.
  struct Known {
    const Series* series = nullptr;
    double factor = 0;  // time of the call, divided by the time of one scaled byte
    double coding = 0;  // seconds that the call takes beyond that
  };

  Series& series_of(const CallKind& kind);
  const Series* find(const CallKind& kind) const;
  template <typename Fits>
  std::optional<Known> nearest(const BoundedCall& call, std::size_t farthest, Fits fits) const;

  const std::uint16_t world_size_;
  double loss_target_;
  std::map<CallKindKey, Series> series_;
};

}  // namespace tarpon
