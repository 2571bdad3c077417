// What one TAR call teaches the bounds of later calls (Bounds). It is taken in two steps: what came
// is known while the operation is open, and how long the call took when it returns.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstdint>
#include <optional>

#include "collectives/allreduce.h"
#include "collectives/engine/bounded/bound_clock.h"
#include "collectives/engine/learning/bounds.h"
#include "transport/endpoint.h"

namespace tarpon {

class BoundLesson {
 public:
  /// All outlive it.
  struct Call {
    Bounds& bounds;
    Endpoint& endpoint;
    const OperationHandle& handle;
    const AllreduceArguments& arguments;
    BoundClock& clock;
    Rank rank = 0;
    std::uint16_t world = 0;
    std::uint64_t absent = 0;  // bit r: rank r was dead or suspect when the call began
  };
  explicit BoundLesson(const Call& call) : call_(call) {}

  /// All peers have confirmed this rank's shard.
  void note_delivered(Time now) { delivered_ = now; }
  /// The call ends, with this report. Bounded calls teach, and exact ones that calibrate
  /// BoundRule::optireduce.
  void take(const Report& report);
  /// The call returns now; it began at `began`. Teaches, if take() was called and found anything.
  void teach(Time began, Time now);

 private:
  const Call call_;
  Time delivered_ = kNever;
  std::optional<BoundSample> sample_;
};

}  // namespace tarpon
