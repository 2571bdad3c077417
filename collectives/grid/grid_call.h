// One AllReduce of a grid: how it is made of calls in the host and on the rail.
//
// It has three stages, which grid_communicator.h describes: scatter, rail, gather. The bucket is
// cut into chunks. Each stage makes one call for each chunk, in their order, so chunks of a call
// are in different stages at a time.
//
// Calls match by their order. So each call of a tag makes all of its calls in a stage before the
// next one makes its first, and a call that fails still makes the rest of its calls: as refused
// ones, which end at once as aborted on all ranks. Nothing here waits: advance() does what the ends
// of earlier calls allow.
//
// One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "collectives/engine/call/pending_call.h"
#include "collectives/engine/schedules/shards.h"
#include "collectives/grid/grid_parts.h"
#include "collectives/grid/grid_report.h"
#include "transport/time.h"

namespace tarpon::grid {

class GridCall {
 public:
  /// Of a chunk, what one rank sends on its rail. So a chunk has this many bytes for each rank of a
  /// host. On a link of 10 to 100 Gb/s a call on the rail then takes 0.1 to 1 ms, several times
  /// what it costs to begin and end it; and a bucket of 100 MiB on 8 ranks a host has 13 chunks, so
  /// that all but the first and the last overlap with work in the host.
  static constexpr std::uint64_t kChunkBytes = 1 << 20;

  /// `before`: the call of this tag that was submitted before; null: it has ended, or there is
  /// none. `parts` outlives the call. Throws std::bad_alloc.
  GridCall(const GridParts& parts, const AllreduceArguments& arguments,
           std::shared_ptr<GridCall> before, Time submitted);

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
  /// Ends it for the caller. `abort`: of the grid, if there was one. REQUIRES: is_over().
  void finish(Time now, const std::optional<Abort>& abort);
  const std::shared_ptr<PendingCall>& pending() const { return pending_; }
  /// How its host has lost a rank for good; complete: it has not.
  Status host_loss() const { return host_loss_; }

 private:
  enum Stage : std::uint8_t { scatter, rail, gather };
  static constexpr std::size_t kStages = 3;
  /// Calls of one stage that run at once.
  static constexpr std::size_t kAtOnce = 2;
  /// A packet may end a call before the control mesh tells that a rank has aborted the
  /// communicator, and which one. So long the call makes no refused ones.
  static constexpr Duration kAbortNews = 500ms;

  struct Progress {
    std::uint64_t started = 0, ended = 0;  // calls
    std::deque<std::shared_ptr<PendingCall>> running;
  };

  bool has_started_all(Stage stage) const;
  bool can_start(Stage stage, Time now) const;
  bool take_ended(Stage stage, Time now);
  void start(Stage stage, Time now);
  CallArguments scatter_call(std::uint64_t chunk) const;
  CallArguments rail_call(std::uint64_t chunk) const;
  CallArguments gather_call(std::uint64_t chunk) const;
  void end_rail(std::uint64_t chunk, const Report& report);
  Range chunk_elements(std::uint64_t chunk) const;
  Range slice(std::uint64_t chunk) const;
  std::byte* output(std::uint64_t element) const;

  const GridParts& parts_;
  const AllreduceArguments arguments_;
  const Time submitted_;
  const Time deadline_;
  const std::uint64_t chunk_size_;  // elements
  const std::uint64_t chunks_;
  const bool divides_last_;  // of an average: sums are divided at the end, not in the host
  std::shared_ptr<GridCall> before_;
  const std::shared_ptr<PendingCall> pending_;
  GridReport report_;
  std::array<Progress, kStages> stages_;
  bool given_up_ = false;
  Time refuse_from_{};
  Status host_loss_ = Status::complete;
};

}  // namespace tarpon::grid
