// The thread of a job's control mesh, and the lock around the mesh and the members of all
// communicators of the job.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/membership/member.h"
#include "collectives/membership/membership.h"
#include "collectives/membership/mesh.h"
#include "collectives/membership/socket_network.h"
#include "transport/clock.h"

namespace tarpon::mesh {

/// A communicator's member, its line and its handlers. Guarded by the hub's lock.
struct Part {
  Part(const MembershipOptions& given, JobLine& of_job)
      : options(given), line(of_job), member(given, of_job) {}
  Part(const MembershipOptions& given, PartLine& of_part)
      : options(given), line(of_part), split(&of_part), member(given, of_part) {}

  const MembershipOptions options;
  const Line& line;
  PartLine* const split = nullptr;  // the line, if the communicator is split from the job
  Member member;
  Membership::Handlers handlers;
  bool has_handlers = false;
};

/// Any thread may call.
class Hub {
 public:
  /// `options`: of the job.
  Hub(const MembershipOptions& options, std::unique_ptr<SocketNetwork> network);

  /// The member of the job, and that of a communicator which is split: as the constructor of
  /// Membership, and Membership::split(). This object outlives the part, which remove() ends.
  std::unique_ptr<Part> add_job(const MembershipOptions& options);
  std::unique_ptr<Part> add_split(const MembershipOptions& options, std::vector<Rank> members);
  /// Ends the news of `part`, and waits until none of its handlers runs.
  void close(Part& part);
  /// REQUIRES: close() was called, and no function takes the part afterwards.
  void remove(Part& part);

  /// Errors: io, if the system allows no more threads. Not thread-safe.
  Result<void> start_thread();
  /// Ends the thread, all that waits in wait_until(), and the connections. Not thread-safe.
  void stop_thread();

  /// Whether stop_thread() was called.
  bool stopped() {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  /// SocketNetwork::shortage(). For functions that run under the lock, as those of wait_until() do.
  const std::optional<Error>& shortage() const { return network_->shortage(); }

  void set_handlers(Part& part, Membership::Handlers handlers);

  /// Runs `change(member, now)`; the thread passes the resulting news and datagrams to the
  /// handlers.
  template <typename Change>
  void apply(Part& part, Change change) {
    {
      const std::lock_guard lock(mutex_);
      const Time now = monotonic_now();
      change(part.member, now);
      advance(now);
    }
    changed_.notify_all();
    network_->wake();
  }

  /// Blocks until `finished(member)` returns true, at most until `until`, or until the thread is to
  /// end. Returns whether it did. Calls `finished` under the lock.
  template <typename Finished>
  bool wait_until(Part& part, Finished finished, Time until) {
    std::unique_lock lock(mutex_);
    while (!finished(part.member)) {
      const Time now = monotonic_now();
      if (now >= until || stopping_) return false;
      changed_.wait_for(lock, std::min<Duration>(until - now, 1h));
    }
    return true;
  }

  /// Returns `look(member)`, under the lock.
  template <typename Look>
  auto look(const Part& part, Look look) {
    const std::lock_guard lock(mutex_);
    return look(part.member);
  }

  /// Returns `look(mesh)`, under the lock.
  template <typename Look>
  auto look_at_mesh(Look look) {
    const std::lock_guard lock(mutex_);
    return look(std::as_const(mesh_));
  }

 private:
  void advance(Time now);
  Time next_deadline() const;
  void run();
  template <typename Handler>
  void call(std::unique_lock<std::mutex>& lock, const Part& part, Handler handler);
  void ask_last_heard(std::unique_lock<std::mutex>& lock);
  void tell(std::unique_lock<std::mutex>& lock);
  bool tell_once(std::unique_lock<std::mutex>& lock, Part& part);

  std::mutex mutex_;  // guards all but the network's wait()
  std::condition_variable changed_;
  std::unique_ptr<SocketNetwork> network_;
  Mesh mesh_;
  std::vector<Part*> parts_;
  const Part* told_ = nullptr;  // the part whose handler runs
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tarpon::mesh
