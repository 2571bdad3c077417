// The calls of a grid: submits them, has them advance, and passes aborts on.
//
// A thread that waits for a call advances all calls. While none waits, a thread of this class does.
// Both sleep until the driver of one of the two communicators tells that a call may have ended.
// Calls go one way: from here to the communicators. Their drivers only count up `changes_`.
//
// An abort of one communicator is passed on to the other one, so it reaches all ranks of the grid
// in three steps at most. Each step carries the rank that has begun it.
//
// A host that has lost a rank for good, or was late for a bounded call beyond the deadline, is out:
// so is one whose rank has lost its place on a rail, which that rank tells the others of its host
// by an abort of their communicator alone. Each of its ranks leaves its rail, so that bounded calls
// of the other hosts go on, and all its calls end alike. Where a call has ended without a result,
// the ranks may have made different numbers of calls of its tag: that tag is over, and its later
// calls end at once, on all ranks.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "collectives/driver/call_keeper.h"
#include "collectives/grid/grid_call.h"
#include "collectives/grid/grid_parts.h"

namespace tarpon::grid {

/// Any thread may call.
class GridCalls final : public CallKeeper {
 public:
  /// A forked child has no thread of it: there the owner leaks it.
  static std::shared_ptr<GridCalls> make();
  ~GridCalls() override { stop(); }
  GridCalls(const GridCalls&) = delete;
  GridCalls& operator=(const GridCalls&) = delete;

  /// Driver::watch() of both communicators calls it.
  void note_change();

  /// Starts the thread. `parts` are those of this rank until stop(). Once. Errors: io.
  Result<void> start(const GridParts& parts);

  /// Throws std::bad_alloc. The call has not begun then. REQUIRES: start(); a collective that a
  /// grid has (GridExchange::is_there()).
  std::shared_ptr<PendingCall> submit(const AllreduceArguments& arguments);
  std::shared_ptr<PendingCall> submit(const CollectiveArguments& arguments);

  /// As Communicator::poll().
  void poll(Duration most);

  /// Ends outstanding and later calls of this rank and of all others.
  void abort(const std::string& reason);
  /// The rank of the grid that has aborted, and its reason. nullopt: none.
  std::optional<Abort> aborted() const;

  /// Makes no further call of the communicators, and ends the thread. Calls that run end with the
  /// communicators; end_calls() tells their callers.
  void stop();
  /// REQUIRES: the communicators have ended all of their calls.
  void end_calls();

  // -- CallKeeper
  Result<void> check_process() const override;
  void wait(const std::shared_ptr<PendingCall>& call) override;
  bool is_forked() const { return ::getpid() != process_; }

 private:
  GridCalls() = default;
  /// Tags that are over. A program that makes more has no call left.
  static constexpr std::size_t kMostOver = 4096;

  void run();
  std::uint64_t changes() const;
  template <typename Ready>
  void sleep(std::unique_lock<std::mutex>& lock, std::condition_variable& news, Ready ready);
  void advance();
  void end(GridCall& call, Time now);
  template <typename Make>
  std::shared_ptr<PendingCall> submit(std::uint32_t tag, const std::optional<Refusal>& refused,
                                      Make make);
  void refuse_what_is_over(GridCall& call, std::uint32_t tag) const;
  void pass_aborts_on();
  void note_loss(const Ending& loss);
  std::optional<Ending> ending() const;
  bool is_stopped() const;
  void set_abort(const Abort& abort);

  const pid_t process_ = ::getpid();
  const GridParts* parts_ = nullptr;
  std::atomic<Time> look_at_ = kNever;  // when to advance() although nothing has changed

  mutable std::mutex mutex_;  // guards all below but what says otherwise
  std::list<std::shared_ptr<GridCall>> calls_;
  std::unordered_map<std::uint32_t, std::shared_ptr<GridCall>> last_;  // by tag, while it runs
  std::unordered_set<std::uint32_t> over_;                             // tags
  std::optional<Ending> loss_;                                         // of this rank's host
  bool stopped_ = false;

  mutable std::mutex abort_mutex_;
  std::optional<Abort> abort_;  // guarded by abort_mutex_

  mutable std::mutex changes_mutex_;
  std::uint64_t changes_ = 0;  // guarded by changes_mutex_, as are the next three
  std::uint32_t waiting_ = 0;  // threads in wait()
  bool stopping_ = false;
  std::condition_variable changed_;  // for threads in wait()
  std::condition_variable needed_;   // for the thread
  std::thread thread_;
};

}  // namespace tarpon::grid
