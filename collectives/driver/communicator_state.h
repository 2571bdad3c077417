// Who drives a live communicator: the callers that wait, its progress thread, and news of the mesh.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/driver/connect.h"
#include "collectives/engine/engine.h"
#include "collectives/flight/flight.h"
#include "collectives/membership/membership.h"
#include "transport/clock.h"

namespace tarpon {

/// One thread at a time drives the engine and its port: a caller that waits, or the progress
/// thread. `mutex_` guards the engine; the driver lets go of it while it sleeps in the port, and
/// while it runs a piece of work on the buffers of a call.
class Communicator::State {
 public:
  State(Connection connection, std::unique_ptr<Flight> flight)
      : given_(std::move(connection.options)),
        flight_(std::move(flight)),
        control_(std::move(connection.control)),
        ranks_(std::move(connection.ranks)),
        options_(connection.agreed),
        shrunk_slots_(std::move(connection.shrunk_slots)),
        port_(std::move(connection.port)),
        engine_(options_, *port_),
        membership_(std::move(connection.membership)) {
    membership_->start({.learned = [this](const Fact& fact) { learn(fact); },
                        .aborted =
                            [this](Rank rank, const std::string& reason) {
                              tell_engine(
                                  [&] { engine_.abort_for_good(rank, reason, monotonic_now()); });
                            },
                        .last_heard =
                            [this](Rank rank) {
                              const std::unique_lock lock = claim();
                              return engine_.last_heard(rank);
                            },
                        .next_numbers =
                            [this] {
                              const std::unique_lock lock = claim();
                              return engine_.next_numbers();
                            },
                        .epoch_decided =
                            [this](const EpochRecord& record) {
                              tell_engine([&] { engine_.epoch_decided(record); });
                            }});
  }

  ~State() { stop(); }

  void start_thread() {
    if (!thread_.joinable()) thread_ = std::thread([this] { run_thread(); });
  }

  /// Ends outstanding calls and the progress thread, and tells the peers.
  void stop() {
    {
      std::unique_lock lock = claim();
      if (std::exchange(stopping_, true)) return;
      engine_.abort(monotonic_now());
      const Time limit = monotonic_now() + 1s;
      while (driving_ && monotonic_now() < limit) {
        const std::uint64_t seen = epoch();
        port_->wake();
        lock.unlock();
        sleep_while(seen, 1ms);
        lock = claim();
      }
      if (!driving_) say_good_bye(limit);
    }
    needed_.notify_all();
    if (regrouped_) membership_->leave_at_once();
    membership_->stop();
    if (thread_.joinable()) thread_.join();
  }

  /// Says goodbye, and returns when every live rank has passed this rank's operations or left.
  Result<void> leave(Time deadline) {
    std::vector<NextNumber> next_numbers;
    {
      const std::unique_lock lock = claim();
      next_numbers = engine_.unpassed();
    }
    return membership_->leave(std::move(next_numbers), deadline);
  }

  /// The next communicator has been made: stop() says goodbye, so that this one's end is no death.
  void leave_when_stopped() { regrouped_ = true; }

  /// Ends outstanding and later calls. `peers_too`: the other ranks' as well, over the mesh.
  void abort(const std::string& reason, bool peers_too) {
    membership_->abort(reason, peers_too);
    tell_engine([&] { engine_.abort_for_good(options_.endpoint.rank, reason, monotonic_now()); });
    const std::unique_lock lock = claim();
    if (!driving_ && !stopping_) say_good_bye(monotonic_now() + kAbortPatience);
  }

  std::shared_ptr<PendingCall> submit(const AllreduceArguments& arguments, bool waits) {
    const Time asked = monotonic_now();
    const bool nonfinite = engine_.looks_nonfinite(arguments);
    const std::unique_lock lock = claim();
    auto call = engine_.submit(arguments, nonfinite, asked, monotonic_now());
    if (!waits) {
      needed_.notify_one();
      if (driving_) port_->wake();
    }
    return call;
  }

  void wait(const std::shared_ptr<PendingCall>& call) {
    ++callers_;  // a progress thread that drives gives way
    while (true) {
      const std::uint64_t seen = epoch();
      if (call->done) break;
      std::unique_lock lock = claim();
      if (!driving_) {
        drive(
            lock, [&] { return call->done.load(); }, kNever);
        continue;
      }
      port_->wake();
      lock.unlock();
      sleep_while(seen, 100ms);
    }
    last_caller_ = monotonic_now();
    --callers_;
  }

  void poll(Duration most) {
    std::unique_lock lock = claim();
    if (driving_) return;
    const Time until = after(monotonic_now(), most);
    int looks = 0;  // drive() looks before its round, after it, and after its sleep
    drive(
        lock, [&] { return looks++ >= 2; }, until);
  }

  PortStatistics port_statistics() {
    const std::unique_lock lock = claim();
    return asleep_ ? before_sleep_ : port_->statistics();
  }
  EndpointCounters counters() {
    const std::unique_lock lock = claim();
    return engine_.counters();
  }

  std::uint32_t flows() {
    const std::unique_lock lock = claim();
    return engine_.flows();
  }

  ControlChannel& control() { return *control_; }
  Membership& membership() { return *membership_; }
  /// As given to connect(), and the network that was found.
  const CommunicatorOptions& given() const { return given_; }
  const std::vector<RankInfo>& ranks() const { return ranks_; }
  const EngineOptions& options() const { return options_; }
  const std::string& shrunk_slots() const { return shrunk_slots_; }

 private:
  /// On the mesh's thread.
  void learn(const Fact& fact) {
    std::uint64_t passed = 0;
    tell_engine([&] {
      engine_.learn(fact, monotonic_now());
      passed = engine_.take_passed();
    });
    membership_->passed(passed);
  }

  /// Applies an event that did not arrive in a packet, and wakes the driver.
  template <typename Change>
  void tell_engine(Change change) {
    {
      const std::unique_lock lock = claim();
      if (stopping_) return;
      change();
      if (driving_) port_->wake();
      needed_.notify_one();
    }
    announce();
  }

  /// The mutex, also from a driver that is busy: it steps aside while somebody claims.
  std::unique_lock<std::mutex> claim() {
    ++claims_;
    std::unique_lock lock(mutex_);
    --claims_;
    return lock;
  }

  // Who waits for others sleeps outside of `mutex_`, which a busy driver would not leave to it.
  std::uint64_t epoch() {
    const std::lock_guard lock(epoch_mutex_);
    return epoch_;
  }
  void announce() {
    {
      const std::lock_guard lock(epoch_mutex_);
      ++epoch_;
    }
    flight_->look();
    changed_.notify_all();
  }
  void sleep_while(std::uint64_t seen, Duration most) {
    std::unique_lock lock(epoch_mutex_);
    changed_.wait_for(lock, most, [&] { return epoch_ != seen; });
  }

  /// Moves packets until `finished`, sleeping in the port when there is nothing to do, at most
  /// until `limit` at a time.
  template <typename Finished>
  void drive(std::unique_lock<std::mutex>& lock, Finished finished, Time limit) {
    driving_ = true;
    while (!finished()) {
      const bool worked = run_piece(lock);
      const std::size_t before = engine_.outstanding();
      if (worked) engine_.piece_ended(monotonic_now());
      bool moved = engine_.progress(monotonic_now()) || worked || engine_.has_piece();
      if (flight_->wants_snapshot(moved)) flight_->publish(engine_.snapshot(monotonic_now()));
      if (engine_.outstanding() != before) {
        announce();
        moved = true;  // whoever polls wants to know
        membership_->wish_eviction(engine_.take_eviction_wish());
        membership_->note_calls(engine_.take_codec_evidence());
      }
      membership_->passed(engine_.take_passed());
      tell_silent();
      if (moved) {
        while (claims_ > 0) {  // std::mutex is not fair: step aside
          lock.unlock();
          std::this_thread::yield();
          lock.lock();
        }
        continue;
      }
      if (finished()) break;
      const Time until = std::min(engine_.next_deadline(), limit);
      before_sleep_ = port_->statistics();
      asleep_ = true;
      lock.unlock();
      port_->wait(monotonic_now(), until);
      lock.lock();
      asleep_ = false;
    }
    driving_ = false;
    tell_silent();
    announce();
  }

  /// Runs a piece of work without the mutex, so that others may submit, abort and look meanwhile.
  /// False when there is none. The caller tells the engine that the piece has ended.
  bool run_piece(std::unique_lock<std::mutex>& lock) {
    if (!engine_.has_piece()) return false;
    const Piece piece = engine_.take_piece(monotonic_now());
    lock.unlock();
    piece.run();
    lock.lock();
    return true;
  }

  /// Tells the membership which ranks are silent, and which of them exact calls need, when that has
  /// changed. REQUIRES: the mutex.
  void tell_silent() {
    const std::uint64_t silent = engine_.silent();
    const std::uint64_t needed = silent == 0 ? 0 : engine_.awaited();
    if (silent == silent_ && needed == needed_silent_) return;
    silent_ = silent;
    needed_silent_ = needed;
    membership_->set_silent(silent, needed);
  }

  /// Sends the aborts; whoever misses them has a deadline.
  void say_good_bye(Time limit) {
    for (Time now = monotonic_now(); now < limit; now = monotonic_now()) {
      const bool moved = engine_.progress(now);
      const bool works = engine_.outstanding() > 0 && engine_.has_piece();
      if (works) {
        engine_.take_piece(monotonic_now()).run();
        engine_.piece_ended(monotonic_now());
      }
      if (moved || works) continue;
      if (engine_.outstanding() == 0) break;
      port_->wait(now, std::min(now + 1ms, limit));  // it still holds lent buffers
    }
    announce();
  }

  void run_thread() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const Time now = monotonic_now();
      const bool busy_caller = driving_ || callers_ > 0;
      const bool idle = engine_.outstanding() == 0;
      if (port_->failure()) {  // nothing moves any more, and the port no longer sleeps
        needed_.wait(lock, [this] { return stopping_; });
        continue;
      }
      if (busy_caller || (idle && now < last_caller_.load() + kTakeOverDelay)) {
        needed_.wait_for(lock, busy_caller ? 2 * kTakeOverDelay : kTakeOverDelay);
        continue;
      }
      drive(
          lock, [this] { return stopping_ || callers_ > 0 || port_->failure(); }, kNever);
    }
  }

  // After a blocking call the progress thread waits this long before it takes over: back-to-back
  // calls then cost it no wake-up.
  static constexpr Duration kTakeOverDelay = 2ms;

  // Where nobody drives, abort() itself waits this long for the port to let go of the buffers.
  static constexpr Duration kAbortPatience = 5ms;

  const CommunicatorOptions given_;
  const std::unique_ptr<Flight> flight_;  // outlives the engine, which writes to its recorder
  std::unique_ptr<ControlChannel> control_;
  const std::vector<RankInfo> ranks_;
  const EngineOptions options_;
  const std::string shrunk_slots_;
  std::unique_ptr<Port> port_;
  Engine engine_;

  std::mutex mutex_;
  std::condition_variable needed_;  // the progress thread has something to do
  std::mutex epoch_mutex_;
  std::uint64_t epoch_ = 0;          // counts ends of calls and of driving
  std::condition_variable changed_;  // epoch_ has
  bool driving_ = false;
  bool asleep_ = false;  // the driver is inside the port, without the mutex
  PortStatistics before_sleep_;
  bool stopping_ = false;
  std::atomic<bool> regrouped_ = false;
  std::uint64_t silent_ = 0, needed_silent_ = 0;  // as told to the membership
  std::atomic<std::uint32_t> callers_ = 0;        // in wait()
  std::atomic<Time> last_caller_ = Time{};
  std::atomic<std::uint32_t> claims_ = 0;
  std::thread thread_;
  std::unique_ptr<Membership> membership_;  // its thread uses the rest
};

}  // namespace tarpon
