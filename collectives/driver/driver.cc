#include "collectives/driver/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace tarpon {
namespace {

// After a blocking call the progress thread waits this long before it takes over.
constexpr Duration kTakeOverDelay = 2ms;
constexpr Duration kHandOver = 20us;  // a rank that has a core copies 64 KiB meanwhile

Error driver_error(const std::exception& error) {
  try {
    return Error::make(Error::Code::io,
                       fmt::format("an exception in the driver: {}", error.what()));
  } catch (const std::exception&) {
    return Error::make(Error::Code::io, "no memory");  // too short to be allocated
  }
}

}  // namespace

Driver::Driver(PortLines& lines, Flight& flight)
    : lines_(lines), port_(lines.first()), flight_(flight) {}

void Driver::start_thread() {
  const Lock lock = claim();
  if (!stopping_ && !thread_.joinable()) thread_ = std::thread([this] { run_thread(); });
}

bool Driver::stop() {
  {
    Lock lock = claim();
    if (std::exchange(stopping_, true)) return false;
    for (DrivenEngine* const one : driven_) {
      if (one == job_) {
        one->stop(monotonic_now());
      } else {
        one->abort_for_good("the communicator of the job was destroyed", monotonic_now());
      }
    }
    const auto still = [this] {
      return std::all_of(driven_.begin(), driven_.end(),
                         [](const DrivenEngine* one) { return one->is_still(); });
    };
    drive_until(lock, still, monotonic_now() + kStopPatience);
    if (job_ != nullptr) drop_calls(lock, *job_);
  }
  needed_.notify_all();
  return true;
}

/// Returns when no thread drives, when `ended()`, or at `limit`. REQUIRES: the mutex, which it lets
/// go of meanwhile.
template <typename Ended>
void Driver::await_driver(Lock& lock, Ended ended, Time limit) {
  while (driving_ && !ended() && monotonic_now() < limit) {
    const std::uint64_t seen = changes();
    port_.wake();
    lock.unlock();
    sleep_while(seen, 1ms);
    lock = claim();
  }
}

/// Returns when no thread is inside the port, and no piece of `one` runs. The caller may then use
/// the port until it lets go of the mutex. A piece takes a few hundred microseconds. REQUIRES: the
/// mutex, which it lets go of meanwhile.
void Driver::await_port(Lock& lock, const DrivenEngine& one) {
  ++port_wanted_;
  await_driver(
      lock, [this, &one] { return working_ != &one && !asleep_; }, kNever);
  --port_wanted_;
}

Driver::Lock Driver::claim() {
  ++claims_;
  Lock lock(mutex_);
  --claims_;
  return lock;
}

void Driver::add(DrivenEngine& engine) {
  const Lock lock = claim();
  if (driven_.empty()) job_ = &engine;
  driven_.push_back(&engine);
}

void Driver::remove(DrivenEngine& engine) {
  Lock lock = claim();
  await_port(lock, engine);
  std::erase(driven_, &engine);
  if (job_ == &engine) job_ = nullptr;
  engine.drop_waiting();
}

void Driver::wake(const Lock&) {
  needed_.notify_one();
  if (driving_) port_.wake();
}

void Driver::end_calls(Lock& lock, const DrivenEngine& engine, Time limit) {
  drive_until(
      lock, [&engine] { return engine.is_still(); }, limit);
}

void Driver::drop_calls(Lock& lock, DrivenEngine& engine) {
  if (engine.engine().outstanding() == 0) return;
  await_port(lock, engine);
  engine.engine().drop_calls(monotonic_now());
  announce();
}

std::unique_ptr<PortLine> Driver::open_line(std::uint16_t communicator, std::vector<Rank> ranks) {
  const Lock lock = claim();
  return lines_.open(communicator, std::move(ranks));
}

void Driver::close_line(std::unique_ptr<PortLine> line) {
  const Lock lock = claim();
  line.reset();
}

/// Drives until `ended()`, at most until `limit`, or lets the thread that drives do so. A peer that
/// misses an abort has a deadline. REQUIRES: the mutex, which it lets go of meanwhile.
void Driver::drive_until(Lock& lock, const std::function<bool()>& ended, Time limit) {
  const auto over = [&] { return ended() || monotonic_now() >= limit; };
  while (!over()) {
    await_driver(lock, over, limit);
    if (!driving_ && !over()) drive(lock, over, limit);
  }
}

void Driver::join() {
  if (thread_.joinable()) thread_.join();
}

std::size_t Driver::outstanding() const {
  std::size_t calls = 0;
  for (const DrivenEngine* const one : driven_) calls += one->engine().outstanding();
  return calls;
}

void Driver::wait(const std::shared_ptr<PendingCall>& call) {
  ++callers_;  // a progress thread that drives gives way
  const auto leave = [](Driver* driver) {
    driver->last_caller_ = monotonic_now();
    --driver->callers_;
  };
  const std::unique_ptr<Driver, decltype(leave)> guard(this, leave);
  while (true) {
    const std::uint64_t seen = changes();
    if (call->done) break;
    Lock lock = claim();
    if (!driving_) {
      drive(
          lock, [&] { return call->done.load(); }, kNever);
      continue;
    }
    port_.wake();
    lock.unlock();
    sleep_while(seen, 100ms);
  }
}

void Driver::poll(Duration most) {
  Lock lock = claim();
  if (driving_) return;
  const Time until = after(monotonic_now(), most);
  int looks = 0;  // drive() looks before its round, after it, and after its sleep
  drive(
      lock, [&] { return looks++ >= 2; }, until);
}

Time Driver::last_heard(Rank rank) {
  const Lock lock = claim();
  Time latest{};
  for (const DrivenEngine* const one : driven_) {
    latest = std::max(latest, one->last_heard(rank));
  }
  return latest;
}

PortStatistics Driver::port_statistics() {
  const Lock lock = claim();
  return asleep_ ? before_sleep_ : port_.statistics();
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
    if (watcher_) watcher_();
  }
  flight_.look();
  changed_.notify_all();
}

void Driver::watch(std::function<void()> watcher) {
  const std::lock_guard lock(changes_mutex_);
  watcher_ = std::move(watcher);
}

void Driver::sleep_while(std::uint64_t seen, Duration most) {
  std::unique_lock lock(changes_mutex_);
  changed_.wait_for(lock, most, [&] { return changes_ != seen; });
}

/// Does `work`. After an exception the port counts as broken: the calls of all communicators end as
/// failed. REQUIRES: the mutex, which it has again at the end.
template <typename Work>
void Driver::guard(Lock& lock, Work work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    asleep_ = false;
    if (!port_.failure()) lines_.fail(driver_error(error));
    fail_calls();
  }
}

/// Ends the calls of all communicators, whose port has failed. REQUIRES: the mutex, no piece runs.
void Driver::fail_calls() {
  for (DrivenEngine* const one : driven_) one->engine().progress(monotonic_now());
  announce();
}

/// Moves packets until `finished`, sleeping in the port when there is nothing to do, at most until
/// `limit` at a time.
template <typename Finished>
void Driver::drive(Lock& lock, Finished finished, Time limit) {
  const auto stop = [&](Driver* driver) { driver->stop_driving(lock); };
  driving_ = true;
  const std::unique_ptr<Driver, decltype(stop)> stopper(this, stop);
  while (!finished()) {
    guard(lock, [&] {
      if (round(lock)) {
        step_aside(lock);
      } else if (!finished()) {
        sleep(lock, limit);
      }
    });
  }
  guard(lock, [&] {
    for (DrivenEngine* const one : driven_) one->tell_silent();
  });
}

/// std::mutex is not fair: lets the threads that wait in claim() have it first.
void Driver::step_aside(Lock& lock) {
  while (claims_ > 0) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

void Driver::stop_driving(Lock& lock) {
  if (!lock.owns_lock()) lock.lock();
  asleep_ = false;
  driving_ = false;
  announce();
}

/// One round of work. False when nothing moved and no call ended.
bool Driver::round(Lock& lock) {
  const DrivenEngine* const worked = run_piece(lock);
  bool moved = false;
  // That of the job comes first: it receives for all.
  for (std::size_t i = 0; i < driven_.size(); ++i) {
    DrivenEngine& one = *driven_[i];
    if (&one != job_ && &one != worked && !one.has_work(monotonic_now())) continue;
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): driven_ holds no null pointer
    const DrivenEngine::Round turn = one.progress(&one == worked);
    if (turn.calls_ended) announce();
    moved |= turn.moved;
  }
  for (DrivenEngine* const one : driven_) {
    if (!moved || !one->measures_link()) continue;
    one->note_packets(port_.statistics(), monotonic_now());
  }
  if (job_ != nullptr && flight_.wants_snapshot(moved)) {
    flight_.publish(job_->engine().snapshot(monotonic_now()));
  }
  return moved;
}

void Driver::sleep(Lock& lock, Time limit) {
  if (port_wanted_ > 0) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    return;
  }
  if (host_moves(limit)) return step_aside(lock);
  if (!fall_asleep()) return step_aside(lock);
  Time until = limit;
  for (const DrivenEngine* const one : driven_) {
    until = std::min(until, one->engine().next_deadline());
  }
  before_sleep_ = port_.statistics();
  refusals_.look(flight_.recorder(), before_sleep_, monotonic_now());
  asleep_ = true;
  lock.unlock();
  port_.wait(monotonic_now(), until);
  lock.lock();
  asleep_ = false;
  for (DrivenEngine* const one : driven_) {
    one->engine().host_calls().wake();
  }
}

/// Where all calls go through the memory of a host: lets its other ranks run for a moment,
/// without a sleep, from which they would have to wake this one. Returns whether one of them has
/// let a call move on, or another thread wants the mutex.
bool Driver::host_moves(Time limit) {
  std::size_t hosted = 0;
  for (DrivenEngine* const one : driven_) {
    hosted += one->engine().host_calls().open();
  }
  if (hosted == 0 || hosted != outstanding()) return false;
  const auto can_move = [](DrivenEngine* one) { return one->engine().host_calls().can_move(); };
  const Time until = std::min(limit, monotonic_now() + kHandOver);
  do {
    if (claims_ > 0 || std::any_of(driven_.begin(), driven_.end(), can_move)) return true;
    std::this_thread::yield();
  } while (monotonic_now() < until);
  return false;
}

/// Has the other ranks of the host ring from now on. Returns false if there is something to do.
bool Driver::fall_asleep() {
  for (DrivenEngine* const one : driven_) {
    if (one->engine().host_calls().fall_asleep()) continue;
    for (DrivenEngine* const awake : driven_) awake->engine().host_calls().wake();
    return false;
  }
  return true;
}

/// Runs a piece of work without the mutex, so that others may submit, abort and look meanwhile.
/// Returns the owner; nullptr when there is no piece.
DrivenEngine* Driver::run_piece(Lock& lock) {
  DrivenEngine* working = nullptr;
  for (std::size_t i = 0; i < driven_.size() && working == nullptr; ++i) {
    DrivenEngine* const one = driven_[(turn_ + i) % driven_.size()];
    if (one->engine().pieces().any()) working = one;
  }
  if (working == nullptr) return nullptr;
  ++turn_;
  const Piece piece = working->engine().pieces().take(monotonic_now());
  working_ = working;
  lock.unlock();
  piece.run();
  lock.lock();
  working_ = nullptr;
  working->engine().pieces().ended(monotonic_now());
  return working;
}

void Driver::run_thread() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Time now = monotonic_now();
    const bool busy_caller = driving_ || callers_ > 0;
    const bool idle = outstanding() == 0 && awaiting_packets_ == 0;
    if (!driving_ && port_.failure()) {  // nothing moves any more, and the port no longer sleeps
      fail_calls();
      needed_.wait(lock, [this] { return stopping_ || outstanding() > 0; });
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
