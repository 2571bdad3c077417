// A call of a grid: how it is made of calls in the host and on the rail, in three stages.
//
// Stages: scatter in the host, rail, gather in the host. A kind of call (the derived classes) says
// how many calls each stage has, and makes them; call i of a stage begins when call i of the stages
// before has ended. So several calls are in different stages at a time.
//
// Calls match by their order. So each call of a tag makes all of its calls in a stage before the
// next one makes its first. A call that fails still makes the rest of its calls, at least one in
// each stage: as refused ones, which end at once as aborted on all ranks. Nothing here waits:
// advance() does what the ends of earlier calls allow.
//
// One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/engine/call/pending_call.h"
#include "collectives/grid/grid_parts.h"
#include "collectives/grid/grid_report.h"
#include "transport/time.h"

namespace tarpon::grid {

class GridCall {
 public:
  virtual ~GridCall() = default;
  GridCall(const GridCall&) = delete;
  GridCall& operator=(const GridCall&) = delete;

  /// Has it fail without being run. REQUIRES: advance() was not called.
  void refuse(Status status, AbortReason reason, const std::vector<Rank>& blamed,
              std::string detail);
  /// It makes no further call: the communicators are over. Those in flight still end.
  void give_up() { given_up_ = true; }

  /// Makes the calls that can be made. Returns whether anything has moved. `aborted`: the grid is.
  bool advance(Time now, bool aborted);
  /// When advance() may have something to do although nothing has ended; kNever: never.
  Time next_look(Time now) const { return refuse_from_ > now ? refuse_from_ : kNever; }

  /// Whether all of its calls have ended: its buffers are the caller's.
  bool is_over() const;
  /// Ends it for the caller. `ending`: of all calls, if there is one. REQUIRES: is_over().
  void finish(Time now, const std::optional<Ending>& ending);
  const std::shared_ptr<PendingCall>& pending() const { return pending_; }
  /// Why its host is out of the grid: it has lost a rank, it was late for a bounded call beyond the
  /// deadline, or this rank has lost its rail. complete: it is not.
  Status host_loss() const { return host_loss_; }
  /// Whether the other ranks of the host do not know it.
  bool lost_rail() const { return lost_rail_; }

 protected:
  enum Stage : std::uint8_t { scatter, rail, gather };
  static constexpr std::size_t kStages = 3;
  using Counts = std::array<std::uint64_t, kStages>;  // of calls, by stage

  /// What all kinds have in common.
  struct Setting {
    const GridParts& parts;            // outlives the call
    std::shared_ptr<GridCall> before;  // the one of this tag before; null: it has ended
    Time submitted{};
    bool bounded = false;  // other hosts go on without this one
  };

  /// `tag` and `deadline`: those of the caller. `slice`: elements of which the rail's reports are.
  /// Throws std::bad_alloc.
  GridCall(Setting setting, Report empty, Duration deadline, const Counts& calls,
           std::uint64_t slice);

  const GridParts& parts() const { return parts_; }
  Rank place() const { return static_cast<Rank>(parts_.own_place()); }
  Rank host() const { return static_cast<Rank>(parts_.own_host()); }
  /// Sum over all ranks into average, in place.
  void divide(void* sums, std::uint64_t elements, DataType type) const;

 private:
  /// Call `index` of a stage, but for its tag and deadline. Throws std::bad_alloc.
  virtual CallArguments make(Stage stage, std::uint64_t index) = 0;
  /// A call has ended with a result. Returns, of the rail, the elements that its report is about.
  virtual std::uint64_t note_end(Stage stage, std::uint64_t index) = 0;

  /// Calls of one stage that run at once.
  static constexpr std::size_t kAtOnce = 2;
  /// A packet may end a call before the control mesh tells that a rank has aborted the
  /// communicator, and which one. So long the call makes no refused ones.
  static constexpr Duration kAbortNews = 500ms;

  struct Progress {
    std::uint64_t calls = 0, started = 0, ended = 0;
    std::deque<std::shared_ptr<PendingCall>> running;
  };

  std::uint64_t calls(const Progress& stage) const;
  bool has_started_all(Stage stage) const;
  bool is_ready(Stage stage) const;
  bool can_start(Stage stage, Time now) const;
  bool take_ended(Stage stage, Time now);
  void note_failure(Stage stage, const Report& report, Time now);
  void lose_host(Status status);
  CallArguments next_call(Stage stage, std::uint64_t index);
  void start(Stage stage, Time now);

  const GridParts& parts_;
  const std::uint32_t tag_;
  const Time submitted_;
  const Time deadline_;
  const bool bounded_;
  std::shared_ptr<GridCall> before_;
  const std::shared_ptr<PendingCall> pending_;
  GridReport report_;
  std::array<Progress, kStages> stages_;
  bool given_up_ = false;
  Time refuse_from_{};
  Status host_loss_ = Status::complete;
  bool lost_rail_ = false;
};

/// Whether averages are divided at the end, and not in each host: half precision would overflow.
bool divides_last(ReduceOp function, DataType type);

}  // namespace tarpon::grid
