// The calls of one rank of a grid: has them advance, and passes aborts on. Without thread, lock or
// clock: GridCalls drives it with real time, a simulation with virtual time.
//
// An abort of one communicator is passed on to the other one, so it reaches all ranks of the grid
// in three steps at most. Each step carries the rank that has begun it.
//
// A host that has lost a rank for good, or was late for a bounded call beyond the deadline, is out:
// so is one whose rank has lost its place on a rail. A rank that learns it tells the others of its
// host by an abort of their communicator alone. Each of its ranks leaves its rail, also one that
// makes no call, so that bounded calls of the other hosts do not wait for it. All calls of the host
// end alike. Where a call has ended without a result,
// the ranks may have made different numbers of calls of its tag: that tag is over, and its later
// calls end at once, on all ranks.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "collectives/engine/refusal.h"
#include "collectives/grid/grid_call.h"
#include "collectives/grid/grid_parts.h"

namespace tarpon::grid {

class GridEngine {
 public:
  /// `parts` outlives it, and its communicators do until stop().
  explicit GridEngine(const GridParts& parts) : parts_(parts) {}

  /// Where memory for the call is refused, it takes its turn in its tag, and ends as aborted on all
  /// ranks (AbortReason::memory). If that little more memory is refused too, the process ends.
  /// REQUIRES: a collective that a grid has (GridExchange::is_there()).
  std::shared_ptr<PendingCall> submit(const AllreduceArguments& arguments, Time now) noexcept;
  std::shared_ptr<PendingCall> submit(const CollectiveArguments& arguments, Time now) noexcept;

  /// Does all that the ends of calls and the aborts of the communicators allow. Returns whether a
  /// call has ended.
  bool progress(Time now) noexcept;
  /// When progress() may have something to do although nothing has changed; kNever: never.
  Time next_deadline() const { return look_at_; }

  /// Ends outstanding and later calls of this rank and of all others; of a host that is out, those
  /// of that host, whose ranks have no part in other calls.
  void abort(const std::string& reason);

  /// Starts no further call of the communicators. Their running calls end when the communicators
  /// end; progress() then tells the callers.
  void stop();

 private:
  /// Tags that are over. A program that makes more has no call left.
  static constexpr std::size_t kMostOver = 4096;

  template <typename Arguments>
  std::shared_ptr<PendingCall> submit_any(const Arguments& arguments, Time now);
  std::optional<Refusal> refusal(const AllreduceArguments& arguments) const;
  std::optional<Refusal> refusal(const CollectiveArguments& arguments) const;
  std::shared_ptr<GridCall> make(const AllreduceArguments& arguments, bool refused,
                                 std::shared_ptr<GridCall> before, Time now) const;
  std::shared_ptr<GridCall> make(const CollectiveArguments& arguments, bool refused,
                                 std::shared_ptr<GridCall> before, Time now) const;
  void refuse_what_is_over(GridCall& call, std::uint32_t tag) const;
  void end(GridCall& call, Time now);
  void pass_aborts_on();
  Rank lost_rank(const GridCall& call) const;
  void note_loss(const Ending& loss);
  std::optional<Ending> ending() const;

  const GridParts& parts_;
  std::list<std::shared_ptr<GridCall>> calls_;
  std::unordered_map<std::uint32_t, std::shared_ptr<GridCall>> last_;  // by tag, while it runs
  std::unordered_set<std::uint32_t> over_;                             // tags
  std::optional<Ending> loss_;                                         // of this rank's host
  std::optional<Abort> abort_;  // the rank of the grid that has begun it
  bool stopped_ = false;
  Time look_at_ = kNever;
};

}  // namespace tarpon::grid
