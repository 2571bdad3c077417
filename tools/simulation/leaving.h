// A rank that leaves a simulated job: its goodbye, the answers of the others, its end. Private to
// the simulation's files.
#pragma once

#include <memory>
#include <vector>

#include "tools/simulation/simulated_rank.h"
#include "tools/simulation/simulation.h"

namespace tarpon {

struct SimulatedCall;

/// Does what the control mesh does for Communicator::close(), with the plan's delays.
class Leaving {
 public:
  using Ranks = std::vector<std::unique_ptr<SimulatedRank>>;
  Leaving(const SimulationPlan& plan, const Ranks& ranks);

  /// When run() has something to do, from `now` on.
  Time next(Time now) const;

  /// Tells the ranks the news that is due. `idle`: every call that the victim has made has ended.
  /// Returns true if the victim's process ends with this.
  bool run(Time now, bool idle);

  /// Call it after `rank` has run.
  void ran(Rank rank, Time now);
  /// Call it when `rank` has been told that the victim is evicted: neither waits for the other
  /// then.
  void evicted(Rank rank, Time now);
  /// Call it when the victim's process has ended in another way.
  void crashed() { crashed_ = true; }

  /// Whether the victim has left. It makes no more calls then.
  bool has_left() const { return left_at_ != kNever; }
  bool has_gone() const { return gone_at_ != kNever; }
  /// Whether no news is left to tell.
  bool over() const { return next_news() == kNever && settled(); }
  /// Notes in `call` what became of the victim, and when ranks were told that it had left, if it
  /// did not make the call.
  void note(SimulatedCall& call) const;
  /// Whether the victim waited for answers until its deadline.
  bool in_vain() const { return in_vain_; }
  /// Whether the victim waited for the bounds of its calls. Each rank whose answer the victim
  /// lacked at its deadline was in a bounded call, and that call ended too late for the answer. The
  /// bound of a call is its deadline while no better one is known.
  bool waited_for_bounds(const std::vector<SimulatedCall>& calls) const;

 private:
  bool settled() const;
  bool is_in_time(Rank rank, Time passed) const;
  Time news_at(Time event, Rank rank) const;
  Time next_news() const;
  Time may_go() const;

  const SimulationPlan& plan_;
  const Ranks& ranks_;
  std::vector<NextNumber> next_numbers_;
  Time left_at_ = kNever;
  Time gone_at_ = kNever;
  std::vector<Time> told_left_, told_gone_;  // by rank; kNever: not yet
  std::vector<Time> passed_;                 // by rank: when its calls with the victim were over
  bool crashed_ = false;
  bool in_vain_ = false;
};

}  // namespace tarpon
