// Drives the calls of a grid (grid_engine.h) in a live job.
//
// A thread that waits for a call advances all calls. While none waits, a thread of this class does.
// Both sleep until the driver of one of the two communicators tells that a call may have ended.
// Calls go one way: from here to the communicators. Their drivers only count up `changes_`.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "collectives/driver/call_keeper.h"
#include "collectives/grid/grid_engine.h"
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

  /// As GridEngine::submit(). REQUIRES: start().
  std::shared_ptr<PendingCall> submit(const AllreduceArguments& arguments);
  std::shared_ptr<PendingCall> submit(const CollectiveArguments& arguments);

  /// As Communicator::poll().
  void poll(Duration most);

  /// Ends outstanding and later calls of this rank and of all others.
  void abort(const std::string& reason);

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
  void run();
  std::uint64_t changes() const;
  template <typename Ready>
  void sleep(std::unique_lock<std::mutex>& lock, std::condition_variable& news, Ready ready);
  void advance();
  template <typename Arguments>
  std::shared_ptr<PendingCall> submit_any(const Arguments& arguments);

  const pid_t process_ = ::getpid();
  std::atomic<Time> look_at_ = kNever;  // when to advance() although nothing has changed

  std::mutex mutex_;
  std::optional<GridEngine> engine_;  // guarded by mutex_

  mutable std::mutex changes_mutex_;
  std::uint64_t changes_ = 0;  // guarded by changes_mutex_, as are the next three
  std::uint32_t waiting_ = 0;  // threads in wait()
  bool stopping_ = false;
  std::condition_variable changed_;  // for threads in wait()
  std::condition_variable needed_;   // for the thread
  std::thread thread_;
};

}  // namespace tarpon::grid
