// How long a bounded call should take, by one rule. LearntBound and PercentileBound are the rules;
// Bounds chooses one for each call.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "collectives/allreduce.h"
#include "collectives/engine/learning/call_kind.h"
#include "transport/time.h"

namespace tarpon {

/// A call that is to be bounded.
struct BoundedCall {
  BoundRule rule = BoundRule::automatic;
  std::optional<Duration> limit;  // the caller's bound, if any
  CallKind kind;
  Duration coding{};  // time for encoding and decoding such a call, if it is coded

  /// Whether the caller's bound is D.
  bool is_given() const { return rule == BoundRule::automatic && limit.has_value(); }
};

/// Measurements of a call at this rank.
struct BoundSample {
  CallKind kind;
  Duration elapsed{};                 // from the clock's start to the return
  std::array<Duration, 2> stages{};   // to the end of each stage
  Duration gather{};                  // what the call needs after its scatter: see GatherTime
  double scattered = 1;               // share of the scatter that came
  double gathered = 1;                // share of the gather that came
  double lost = 0;                    // lost share: see LossCauses::of_live_ranks()
  std::optional<Duration> straggler;  // a live rank was late: when its first packet came
  std::uint64_t silent = 0;  // bit r: nothing came of rank r, which was live and not suspect
  bool bounded = false;      // false: it calibrates BoundRule::optireduce
  double early_lost = 0;     // share of the packets that came after an early close
  double packets = 0;        // packets that came
};

/// A share of a call's packets, and when it is too large: early closes wait longer if it is above
/// `high`, and shorter if it is below `low`.
struct EarlyLoss {
  double share = 0;
  double high = 0;
  double low = 0;
};

class BoundEstimate {
 public:
  virtual ~BoundEstimate() = default;

  /// D of `call`, of which `left` is the time until its deadline: at most `left`, and all of it
  /// while nothing is known.
  virtual Duration whole(const BoundedCall& call, Duration left) const = 0;
  /// g of `call` with the bound `whole`: at most half of it; zero for a call without gather.
  virtual Duration gather(const BoundedCall& call, Duration whole) const = 0;
  /// The loss by which the wait of early closes adapts.
  virtual EarlyLoss early_loss(const BoundSample& sample) const = 0;
};

}  // namespace tarpon
