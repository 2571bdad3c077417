// Drives the engine of a live communicator and its port: by callers that wait, and by a progress
// thread.
//
// One thread at a time drives. A mutex guards the engine. The driver lets go of it while it sleeps
// in the port, and while it runs a piece of work on the buffers of a call; it steps aside when
// another thread wants the mutex. After a blocking call the progress thread waits 2 ms before it
// takes over, so that back-to-back calls cost it no wake-up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "collectives/driver/rate_meter.h"
#include "collectives/engine/engine.h"
#include "collectives/flight/flight.h"
#include "collectives/membership/membership.h"
#include "transport/clock.h"
#include "transport/port.h"

namespace tarpon {

/// Any thread may call, unless said otherwise.
class Driver {
 public:
  /// All arguments outlive the driver. The driver tells `membership` which ranks are silent, which
  /// have passed their calls and which are to be evicted, and the codec evidence of ended calls.
  Driver(Engine& engine, Port& port, Flight& flight, Membership& membership);

  /// REQUIRES: stop() and join() have run.
  ~Driver() = default;

  /// Starts the progress thread if it does not run. Not thread-safe.
  void start_thread();

  /// Ends outstanding calls, tells the peers, and asks the progress thread to end. Takes a second
  /// at most. Returns false if it was called before.
  bool stop();
  /// Returns when the progress thread has ended. REQUIRES: stop() has returned.
  void join();

  /// Engine::submit(). `waits`: the caller calls wait() next.
  std::shared_ptr<PendingCall> submit(const AllreduceArguments& arguments, bool waits);
  /// Returns when `call` is done. Drives if no other thread does.
  void wait(const std::shared_ptr<PendingCall>& call);
  /// Drives for two rounds. If nothing moves in the first one, sleeps for at most `most` instead of
  /// the second. Does nothing if another thread drives.
  void poll(Duration most);

  /// Ends outstanding and later calls here, and tells the peers.
  void abort_for_good(Rank origin, const std::string& reason);

  /// Returns the result of `look(engine)`, which only reads.
  template <typename Look>
  auto look(Look look) {
    const std::unique_lock lock = claim();
    return look(static_cast<const Engine&>(engine_));
  }

  /// Applies `change(engine)`, an event that did not arrive in a packet, and wakes the driver. Does
  /// nothing after stop().
  template <typename Change>
  void tell(Change change) {
    {
      const std::unique_lock lock = claim();
      if (stopping_) return;
      change(engine_);
      if (driving_) port_.wake();
      needed_.notify_one();
    }
    announce();
  }

  PortStatistics port_statistics();

  /// Measures the rate of the port from now on, over `window` bytes at a time.
  void measure_link(std::uint64_t window);
  /// RateMeter::rate() of this measurement.
  double link_rate();

 private:
  /// Locks the mutex. A busy driver steps aside while another thread waits here.
  std::unique_lock<std::mutex> claim() {
    ++claims_;
    std::unique_lock lock(mutex_);
    --claims_;
    return lock;
  }

  std::uint64_t changes();
  void announce();
  void sleep_while(std::uint64_t seen, Duration most);
  template <typename Finished>
  void drive(std::unique_lock<std::mutex>& lock, Finished finished, Time limit);
  bool round(std::unique_lock<std::mutex>& lock);
  void sleep(std::unique_lock<std::mutex>& lock, Time limit);
  bool run_piece(std::unique_lock<std::mutex>& lock);
  void tell_silent();
  void say_good_bye(Time limit);
  void run_thread();

  Engine& engine_;
  Port& port_;
  Flight& flight_;
  Membership& membership_;

  std::mutex mutex_;
  std::condition_variable needed_;  // notified when the progress thread has something to do
  std::mutex changes_mutex_;
  std::uint64_t changes_ = 0;        // ends of calls and of driving so far
  std::condition_variable changed_;  // notified when changes_ grows
  bool driving_ = false;
  bool asleep_ = false;  // the driver is inside the port, without the mutex
  PortStatistics before_sleep_;
  RateMeter meter_;
  bool stopping_ = false;
  std::uint64_t silent_ = 0, needed_silent_ = 0;  // as told to the membership
  std::atomic<std::uint32_t> callers_ = 0;        // threads in wait()
  std::atomic<Time> last_caller_ = Time{};
  std::atomic<std::uint32_t> claims_ = 0;
  std::thread thread_;
};

}  // namespace tarpon
