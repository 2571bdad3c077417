// The time of one bounded TAR call: what its rank expects, when half of the ranks had begun, and
// when its stages end.
//
// Not thread-safe. No clock inside.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "collectives/allreduce.h"
#include "collectives/engine/learning/bounds.h"
#include "collectives/mechanisms.h"
#include "transport/endpoint.h"

namespace tarpon {

class BoundClock {
 public:
  /// Of the communicator and the call. All outlive the clock.
  struct Call {
    Bounds& bounds;
    const Mechanisms& mechanisms;
    const AllreduceArguments& arguments;
    Endpoint& endpoint;
    const OperationHandle& handle;  // set once the operation is open
    Rank rank = 0;
    std::uint16_t world = 0;
    CallKind kind;
    Duration coding{};  // time for encoding and decoding, if the call is coded
    Time submitted{};
    Time deadline = kNever;
    Report& report;
  };
  explicit BoundClock(const Call& call) : call_(call) {}

  const CallKind& kind() const { return call_.kind; }

  /// Adds what this rank expects to the operation.
  void plan(OperationSpec& spec, Time now);

  /// Starts the clock at `at`, when half of the ranks had begun. What this rank and its peers
  /// expect decides when the stages end. `work_left`: returns the time that the work on the buffers
  /// would take; it is called once end() is known.
  void start(Time at, const std::function<Duration()>& work_left, Time now);
  /// A stage has waited for data: the call ends later by as much.
  void extend(Duration by, Time now);

  bool has_started() const { return started_ != kNever; }
  /// kNever: it has not started.
  Time started() const { return started_; }
  /// The latest end of the call, unless this rank is late; kNever before the start.
  Time end() const { return end_; }
  /// From the start to end(). REQUIRES: it has started.
  Duration whole() const { return end_ - started_; }
  /// When the gather ends, unless peers are asked then.
  Time gather_due() const { return gather_due_; }
  /// When the scatter, or the gather, ends at the latest, whatever is missing.
  Time latest(std::size_t stage) const { return latest_[stage]; }
  /// Whether the owners wait for the data of live ranks (HoldPolicy), at most until latest().
  bool waits_for_live() const { return tolerated_ < 1; }
  /// The share of live ranks for which a call that waits for them does not wait.
  double tolerated() const { return tolerated_; }

  /// When to compare the work that is left with the time that is left; kNever: no more.
  Time look_at() const { return look_at_; }
  void stop_looking() { look_at_ = kNever; }
  /// Closes both stages when the work that is left needs all of the time until the end of the call.
  /// The work shrinks while slots arrive, so the time to look is computed again.
  void close_for_work(Duration work_left, Time now);

  /// Takes the terms that `peer` has told for this call, once.
  void hear_terms(Rank peer);

 private:
  BoundedCall bounded_call() const;
  CallBound agree(Time at);
  HoldPolicy hold_policy(const CallBound& bound, const std::function<Duration()>& work_left) const;

  const Call call_;
  BoundTerms terms_;                  // of this rank
  std::optional<BoundTerms> before_;  // those that it has told before this call
  std::uint64_t terms_heard_ = 0;     // bit r: rank r has told its terms
  Time started_ = kNever;
  Time end_ = kNever;
  Time gather_due_ = kNever;
  Time look_at_ = kNever;
  double tolerated_ = 1;  // HoldPolicy::above
  std::array<Time, 2> latest_{kNever, kNever};
};

}  // namespace tarpon
