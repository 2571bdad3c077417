// Drives the engines of the communicators of a job, and its port: by callers that wait, and by a
// progress thread.
//
// One thread at a time drives, all engines in turn. A mutex guards the engines. The driver lets go
// of it while it sleeps in the port, and while it runs a piece of work on the buffers of a call; it
// steps aside when another thread wants the mutex. After a blocking call the progress thread waits
// 2 ms before it takes over, so that back-to-back calls cost it no wake-up. It takes over at once
// while a thread awaits packets that belong to no call (AwaitsPackets).
//
// Calls go one way: a communicator calls its Driven, that calls the driver and its DrivenEngine,
// and the driver calls the DrivenEngines.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "collectives/driver/driven_engine.h"
#include "collectives/engine/flight_events.h"
#include "collectives/flight/flight.h"
#include "transport/clock.h"
#include "transport/port.h"
#include "transport/ports/port_lines.h"

namespace tarpon {

/// Any thread may call, unless said otherwise.
class Driver {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// stop() waits this long for calls to end and for the port to release the buffers.
  static constexpr Duration kStopPatience = 1s;

  /// Both outlive the driver.
  Driver(PortLines& lines, Flight& flight);

  /// REQUIRES: stop() and join() have run.
  ~Driver() = default;

  /// Starts the progress thread if it does not run. Does nothing after stop().
  void start_thread();

  /// Ends outstanding calls of all engines, tells the peers, and asks the progress thread to end.
  /// On return all calls of the job's own communicator are done.
  /// Later calls of communicators that were split from the job end as aborted. Takes a second at
  /// most. Returns false if it was called before.
  bool stop();
  /// Returns when the progress thread has ended. REQUIRES: stop() has returned.
  void join();

  /// Returns when `call` is done. Drives if no other thread does.
  void wait(const std::shared_ptr<PendingCall>& call);
  /// Drives for two rounds. If nothing moves in the first one, sleeps for at most `most` instead of
  /// the second. Does nothing if another thread drives.
  void poll(Duration most);

  /// When the last packet of a rank of the job arrived, of any communicator; Time{}: never.
  Time last_heard(Rank rank);

  PortStatistics port_statistics();

  /// From now on calls `watcher` whenever calls may have ended. It must be quick, and call nothing
  /// of the driver. Null: none any more; none runs on return.
  void watch(std::function<void()> watcher);

  // -- for the communicators (Driven, SplitLine) ------------------------------------------------

  /// Locks the mutex that guards the engines. A busy driver steps aside while another thread waits
  /// here.
  Lock claim();

  /// From now on the driver runs `engine`, until remove() returns. The first one is that of the
  /// job.
  void add(DrivenEngine& engine);
  /// Also drops the packets that the port still holds for it.
  void remove(DrivenEngine& engine);

  /// An engine has work that no packet brought: wakes the thread that drives. REQUIRES: the mutex.
  void wake(const Lock& lock);
  /// Whether a thread drives. REQUIRES: the mutex.
  bool is_driven(const Lock&) const { return driving_; }
  /// Wakes all threads that wait for the end of a call.
  void announce();

  /// Drives until the calls of `engine` are done and the peers know it, at most until `limit`, or
  /// lets the thread that drives do so. REQUIRES: the mutex, which it lets go of meanwhile.
  void end_calls(Lock& lock, const DrivenEngine& engine, Time limit);
  /// Ends the calls that are not done: their buffers are the callers' from here on. REQUIRES: the
  /// mutex, which it lets go of meanwhile.
  void drop_calls(Lock& lock, DrivenEngine& engine);

  /// PortLines::open() and the end of such a line, whose engine is gone.
  std::unique_ptr<PortLine> open_line(std::uint16_t communicator, std::vector<Rank> ranks);
  void close_line(std::unique_ptr<PortLine> line);

  /// While one exists, the progress thread, if there is one, takes packets as soon as they come,
  /// also where no call is open. The driver outlives it.
  class AwaitsPackets {
   public:
    explicit AwaitsPackets(Driver& driver) : driver_(driver) {
      const std::unique_lock lock = driver_.claim();
      ++driver_.awaiting_packets_;
      driver_.needed_.notify_one();
    }
    ~AwaitsPackets() { --driver_.awaiting_packets_; }
    AwaitsPackets(const AwaitsPackets&) = delete;
    AwaitsPackets& operator=(const AwaitsPackets&) = delete;

   private:
    Driver& driver_;
  };

 private:
  std::uint64_t changes();
  void sleep_while(std::uint64_t seen, Duration most);
  std::size_t outstanding() const;
  template <typename Finished>
  void drive(Lock& lock, Finished finished, Time limit);
  template <typename Work>
  void guard(Lock& lock, Work work);
  void fail_calls();
  void step_aside(Lock& lock);
  void stop_driving(Lock& lock);
  bool round(Lock& lock);
  void sleep(Lock& lock, Time limit);
  bool host_moves(Time limit);
  bool fall_asleep();
  DrivenEngine* run_piece(Lock& lock);
  template <typename Ended>
  void await_driver(Lock& lock, Ended ended, Time limit);
  void await_port(Lock& lock, const DrivenEngine& one);
  void drive_until(Lock& lock, const std::function<bool()>& ended, Time limit);
  void run_thread();

  PortLines& lines_;
  Port& port_;  // the first line
  Flight& flight_;

  std::mutex mutex_;
  std::condition_variable needed_;     // notified when the progress thread has something to do
  std::vector<DrivenEngine*> driven_;  // that of the job first
  DrivenEngine* job_ = nullptr;        // that of the job, until it is gone
  DrivenEngine* working_ = nullptr;    // the one whose piece runs
  std::size_t turn_ = 0;               // which engine may run its next piece first
  std::mutex changes_mutex_;
  std::uint64_t changes_ = 0;        // ends of calls and of driving so far
  std::condition_variable changed_;  // notified when changes_ grows
  std::function<void()> watcher_;    // guarded by changes_mutex_
  bool driving_ = false;
  bool asleep_ = false;            // the driver is inside the port, without the mutex
  std::uint32_t port_wanted_ = 0;  // threads in await_port(): the driver does not sleep meanwhile
  PortStatistics before_sleep_;
  SendRefusals refusals_;
  bool stopping_ = false;
  std::atomic<std::uint32_t> callers_ = 0;  // threads in wait()
  std::atomic<Time> last_caller_ = Time{};
  std::atomic<std::uint32_t> awaiting_packets_ = 0;  // objects of AwaitsPackets
  std::atomic<std::uint32_t> claims_ = 0;
  std::thread thread_;
};

}  // namespace tarpon
