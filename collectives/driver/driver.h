// Drives the engines of the communicators of a job, and its port: by callers that wait, and by a
// progress thread.
//
// One thread at a time drives, all engines in turn. A mutex guards the engines. The driver lets go
// of it while it sleeps in the port, and while it runs a piece of work on the buffers of a call; it
// steps aside when another thread wants the mutex. After a blocking call the progress thread waits
// 2 ms before it takes over, so that back-to-back calls cost it no wake-up. It takes over at once
// while a thread awaits packets that belong to no call (AwaitsPackets).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/driver/learnt_shares.h"
#include "collectives/driver/rate_meter.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/flight_events.h"
#include "collectives/flight/flight.h"
#include "collectives/membership/membership.h"
#include "transport/clock.h"
#include "transport/port.h"
#include "transport/ports/port_lines.h"

namespace tarpon {

class Driver;

/// The engine of a communicator, as its driver knows it. Any thread may call.
class Driven {
 public:
  /// `engine` works on `line`, as the rank that `self` has in its communicator. The driver tells
  /// `membership` which ranks are silent, which have passed their calls and which are to be
  /// evicted, the codec evidence of ended calls, and the messages on verdicts that have come. The
  /// other arguments outlive this object. Those of the job come first.
  Driven(Driver& driver, Engine& engine, const EndpointOptions& self, PortLine& line,
         Membership& membership);
  /// Calls stop(), and drops the packets that the port still holds.
  ~Driven();
  Driven(const Driven&) = delete;
  Driven& operator=(const Driven&) = delete;

  /// Engine::submit(), with learnt shares where the call asks for them. Never waits for peers.
  /// `waits`: the caller calls Driver::wait() next. Null where a call that follows finds that this
  /// rank is not behind. Throws std::bad_alloc. The call has no number then.
  std::shared_ptr<PendingCall> submit(const AllreduceArguments& arguments, bool waits);

  /// Engine::behind().
  std::uint32_t behind(std::uint32_t tag);

  /// Ends outstanding and later calls here, and tells the peers.
  void abort_for_good(Rank origin, const std::string& reason);

  /// Returns the result of `look(engine)`, which only reads.
  template <typename Look>
  auto look(Look look);

  /// Applies `change(engine)`, an event that did not arrive in a packet, and wakes the driver. Does
  /// nothing after stop().
  template <typename Change>
  void tell(Change change);

  /// The shares of the next call of `tag` that learns.
  Shares learnt_shares(std::uint32_t tag);

  /// Takes part in no further exchange of measurements: the caller says goodbye next.
  void end_learning();

  /// Ends outstanding calls and tells the peers. Takes a second at most. Calls that are not done by
  /// then give up the rest of their work: on return all calls are done.
  void stop();

  Driver& driver() { return driver_; }

 private:
  friend class Driver;
  bool has_work(Time now) const;
  bool is_still() const;
  bool progress(bool piece_has_ended);
  void take_agreements();
  void tell_silent();
  void drop_calls(std::unique_lock<std::mutex>& lock);

  Driver& driver_;
  Engine& engine_;
  const Rank rank_;
  PortLine& line_;
  Membership& membership_;
  std::uint64_t silent_ = 0, needed_silent_ = 0;  // as told to the membership
  bool quiet_ = true;  // the last round moved nothing, left nothing in the port; no work came since
  bool stopped_ = false;
  RateMeter meter_;  // packets of other communicators count, too: they share the link
  LearntShares learnt_shares_;
};

/// Any thread may call, unless said otherwise.
class Driver {
 public:
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
  friend class Driven;
  friend class SplitLine;

  // stop() waits this long for calls to end and for the port to release the buffers.
  static constexpr Duration kStopPatience = 1s;

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
  std::size_t outstanding() const;
  template <typename Finished>
  void drive(std::unique_lock<std::mutex>& lock, Finished finished, Time limit);
  template <typename Work>
  void guard(std::unique_lock<std::mutex>& lock, Work work);
  void fail_calls();
  void step_aside(std::unique_lock<std::mutex>& lock);
  void stop_driving(std::unique_lock<std::mutex>& lock);
  bool round(std::unique_lock<std::mutex>& lock);
  void sleep(std::unique_lock<std::mutex>& lock, Time limit);
  Driven* run_piece(std::unique_lock<std::mutex>& lock);
  template <typename Ended>
  void await_driver(std::unique_lock<std::mutex>& lock, Ended ended, Time limit);
  void await_port(std::unique_lock<std::mutex>& lock, const Driven& one);
  void end_calls(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ended,
                 Time limit);
  void run_thread();

  PortLines& lines_;
  Port& port_;  // the first line
  Flight& flight_;

  std::mutex mutex_;
  std::condition_variable needed_;  // notified when the progress thread has something to do
  std::vector<Driven*> driven_;     // that of the job first
  Driven* job_ = nullptr;           // that of the job, until it is gone
  Driven* working_ = nullptr;       // the one whose piece runs
  std::size_t turn_ = 0;            // which engine may run its next piece first
  std::mutex changes_mutex_;
  std::uint64_t changes_ = 0;        // ends of calls and of driving so far
  std::condition_variable changed_;  // notified when changes_ grows
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

/// The line of a communicator that is split from a job. Any thread may make and destroy it while
/// the driver works.
class SplitLine {
 public:
  /// PortLines::open().
  SplitLine(Driver& driver, std::uint16_t communicator, std::vector<Rank> ranks);
  /// REQUIRES: its engine is gone.
  ~SplitLine();
  SplitLine(const SplitLine&) = delete;
  SplitLine& operator=(const SplitLine&) = delete;

  PortLine& operator*() { return *line_; }

 private:
  Driver& driver_;
  std::unique_ptr<PortLine> line_;
};

inline SplitLine::SplitLine(Driver& driver, std::uint16_t communicator, std::vector<Rank> ranks)
    : driver_(driver) {
  const std::unique_lock lock = driver_.claim();
  line_ = driver_.lines_.open(communicator, std::move(ranks));
}

inline SplitLine::~SplitLine() {
  const std::unique_lock lock = driver_.claim();
  line_.reset();
}

template <typename Look>
auto Driven::look(Look look) {
  const std::unique_lock lock = driver_.claim();
  return look(static_cast<const Engine&>(engine_));
}

template <typename Change>
void Driven::tell(Change change) {
  {
    const std::unique_lock lock = driver_.claim();
    if (stopped_) return;
    change(engine_);
    quiet_ = false;
    if (driver_.driving_) driver_.port_.wake();
    driver_.needed_.notify_one();
  }
  driver_.announce();
}

}  // namespace tarpon
