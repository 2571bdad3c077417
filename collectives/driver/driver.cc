#include "collectives/driver/driver.h"

#include <algorithm>
#include <utility>

#include "collectives/engine/coded_calls.h"

namespace tarpon {
namespace {

// After a blocking call the progress thread waits this long before it takes over.
constexpr Duration kTakeOverDelay = 2ms;

// If no thread drives, abort_for_good() itself waits this long for the port to release the buffers.
constexpr Duration kAbortPatience = 5ms;

}  // namespace

Driver::Driver(Engine& engine, Port& port, Flight& flight, Membership& membership)
    : engine_(engine), port_(port), flight_(flight), membership_(membership) {}

void Driver::start_thread() {
  if (!thread_.joinable()) thread_ = std::thread([this] { run_thread(); });
}

bool Driver::stop() {
  {
    std::unique_lock lock = claim();
    if (std::exchange(stopping_, true)) return false;
    engine_.abort(monotonic_now());
    const Time limit = monotonic_now() + 1s;
    while (driving_ && monotonic_now() < limit) {
      const std::uint64_t seen = changes();
      port_.wake();
      lock.unlock();
      sleep_while(seen, 1ms);
      lock = claim();
    }
    if (!driving_) say_good_bye(limit);
  }
  needed_.notify_all();
  return true;
}

void Driver::join() {
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<PendingCall> Driver::submit(const AllreduceArguments& arguments, bool waits) {
  const Time asked = monotonic_now();
  const bool nonfinite = engine_.looks_nonfinite(arguments);
  const std::unique_lock lock = claim();
  auto call = engine_.submit(arguments, nonfinite, asked, monotonic_now());
  if (!waits) {
    needed_.notify_one();
    if (driving_) port_.wake();
  }
  return call;
}

void Driver::wait(const std::shared_ptr<PendingCall>& call) {
  ++callers_;  // a progress thread that drives gives way
  while (true) {
    const std::uint64_t seen = changes();
    if (call->done) break;
    std::unique_lock lock = claim();
    if (!driving_) {
      drive(
          lock, [&] { return call->done.load(); }, kNever);
      continue;
    }
    port_.wake();
    lock.unlock();
    sleep_while(seen, 100ms);
  }
  last_caller_ = monotonic_now();
  --callers_;
}

void Driver::poll(Duration most) {
  std::unique_lock lock = claim();
  if (driving_) return;
  const Time until = after(monotonic_now(), most);
  int looks = 0;  // drive() looks before its round, after it, and after its sleep
  drive(
      lock, [&] { return looks++ >= 2; }, until);
}

void Driver::abort_for_good(Rank origin, const std::string& reason) {
  tell([&](Engine& engine) { engine.abort_for_good(origin, reason, monotonic_now()); });
  const std::unique_lock lock = claim();
  if (!driving_ && !stopping_) say_good_bye(monotonic_now() + kAbortPatience);
}

PortStatistics Driver::port_statistics() {
  const std::unique_lock lock = claim();
  return asleep_ ? before_sleep_ : port_.statistics();
}

void Driver::measure_link(std::uint64_t window) {
  const std::unique_lock lock = claim();
  meter_.begin(window);
}

double Driver::link_rate() {
  const std::unique_lock lock = claim();
  return meter_.rate();
}

// A thread that waits for others sleeps without `mutex_`, because a busy driver rarely releases it.

std::uint64_t Driver::changes() {
  const std::lock_guard lock(changes_mutex_);
  return changes_;
}

void Driver::announce() {
  {
    const std::lock_guard lock(changes_mutex_);
    ++changes_;
  }
  flight_.look();
  changed_.notify_all();
}

void Driver::sleep_while(std::uint64_t seen, Duration most) {
  std::unique_lock lock(changes_mutex_);
  changed_.wait_for(lock, most, [&] { return changes_ != seen; });
}

/// Moves packets until `finished`, sleeping in the port when there is nothing to do, at most until
/// `limit` at a time.
template <typename Finished>
void Driver::drive(std::unique_lock<std::mutex>& lock, Finished finished, Time limit) {
  driving_ = true;
  while (!finished()) {
    if (!round(lock)) {
      if (finished()) break;
      sleep(lock, limit);
      continue;
    }
    while (claims_ > 0) {  // std::mutex is not fair: step aside
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
  driving_ = false;
  tell_silent();
  announce();
}

/// One round of work. False when nothing moved and no call ended.
bool Driver::round(std::unique_lock<std::mutex>& lock) {
  const bool worked = run_piece(lock);
  const std::size_t before = engine_.outstanding();
  if (worked) engine_.piece_ended(monotonic_now());
  bool moved = engine_.progress(monotonic_now()) || worked || engine_.has_piece();
  if (meter_.on() && moved) meter_.note(port_.statistics(), monotonic_now());
  if (flight_.wants_snapshot(moved)) flight_.publish(engine_.snapshot(monotonic_now()));
  if (engine_.outstanding() != before) {
    announce();
    moved = true;  // a caller of poll() wants to know
    membership_.wish_eviction(engine_.take_eviction_wish());
    membership_.note_calls(engine_.coded_calls().take_evidence());
  }
  membership_.passed(engine_.take_passed());
  tell_silent();
  return moved;
}

void Driver::sleep(std::unique_lock<std::mutex>& lock, Time limit) {
  const Time until = std::min(engine_.next_deadline(), limit);
  before_sleep_ = port_.statistics();
  asleep_ = true;
  lock.unlock();
  port_.wait(monotonic_now(), until);
  lock.lock();
  asleep_ = false;
}

/// Runs a piece of work without the mutex, so that others may submit, abort and look meanwhile.
/// False when there is none. The caller tells the engine that the piece has ended.
bool Driver::run_piece(std::unique_lock<std::mutex>& lock) {
  if (!engine_.has_piece()) return false;
  const Piece piece = engine_.take_piece(monotonic_now());
  lock.unlock();
  piece.run();
  lock.lock();
  return true;
}

/// Tells the membership which ranks are silent, and which of them exact calls need, when that has
/// changed. REQUIRES: the mutex.
void Driver::tell_silent() {
  const std::uint64_t silent = engine_.endpoint().silent();
  const std::uint64_t needed = silent == 0 ? 0 : engine_.awaited();
  if (silent == silent_ && needed == needed_silent_) return;
  silent_ = silent;
  needed_silent_ = needed;
  membership_.set_silent(silent, needed);
}

/// Sends the aborts. A peer that misses them has a deadline. REQUIRES: the mutex; no thread drives.
void Driver::say_good_bye(Time limit) {
  for (Time now = monotonic_now(); now < limit; now = monotonic_now()) {
    const bool moved = engine_.progress(now);
    const bool works = engine_.outstanding() > 0 && engine_.has_piece();
    if (works) {
      engine_.take_piece(monotonic_now()).run();
      engine_.piece_ended(monotonic_now());
    }
    if (moved || works) continue;
    if (engine_.outstanding() == 0) break;
    port_.wait(now, std::min(now + 1ms, limit));  // the port still holds lent buffers
  }
  announce();
}

void Driver::run_thread() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Time now = monotonic_now();
    const bool busy_caller = driving_ || callers_ > 0;
    const bool idle = engine_.outstanding() == 0;
    if (port_.failure()) {  // nothing moves any more, and the port no longer sleeps
      needed_.wait(lock, [this] { return stopping_; });
      continue;
    }
    if (busy_caller || (idle && now < last_caller_.load() + kTakeOverDelay)) {
      needed_.wait_for(lock, busy_caller ? 2 * kTakeOverDelay : kTakeOverDelay);
      continue;
    }
    drive(
        lock, [this] { return stopping_ || callers_ > 0 || port_.failure(); }, kNever);
  }
}

}  // namespace tarpon
