// The calls of a communicator that is split from a simulated job. Private to the simulation's
// files.
#pragma once

#include <memory>
#include <vector>

#include "tools/simulation/simulated_rank.h"
#include "tools/simulation/simulation.h"
#include "transport/rank_mask.h"

namespace tarpon {

/// Each member makes two exact calls, one after the other, from the start on. After healing it
/// makes a third one, which has to be complete if no member is gone for good.
class PartCalls {
 public:
  using Ranks = std::vector<std::unique_ptr<SimulatedRank>>;
  /// Both outlive this object.
  PartCalls(const SimulationPlan& plan, const Ranks& ranks) : plan_(plan), ranks_(ranks) {
    calls_.resize(plan.ranks);
  }

  /// When `rank` makes its next call; kNever: not before the one that it has made has ended.
  /// REQUIRES: its process is the first one, also below.
  Time next(Rank rank) const;
  void submit_due(Rank rank, Time now);
  /// Calls from now on begin at `from`.
  void heal(Time from) { live_from_ = from; }
  /// Whether `rank` has made all its calls, if it `makes_calls`, and they have ended.
  bool done(Rank rank, bool makes_calls) const;

  /// A call that is complete has the right sum.
  void judge(SimulationResult& result) const;

 private:
  static constexpr std::size_t kCalls = 2;
  struct Call {
    std::vector<float> buffer;  // in place
    std::shared_ptr<PendingCall> pending;
  };

  std::size_t most() const { return live_from_ == kNever ? kCalls : kCalls + 1; }
  bool is_member(Rank rank) const { return (plan_.part & bit(rank)) != 0; }
  bool idle(Rank rank) const { return calls_[rank].empty() || calls_[rank].back().pending->done; }

  const SimulationPlan& plan_;
  const Ranks& ranks_;
  std::vector<std::vector<Call>> calls_;  // by rank of the job
  Time live_from_ = kNever;
};

}  // namespace tarpon
