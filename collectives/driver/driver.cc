#include "collectives/driver/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace tarpon {
namespace {

// After a blocking call the progress thread waits this long before it takes over.
constexpr Duration kTakeOverDelay = 2ms;

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
  const std::unique_lock lock = claim();
  if (!stopping_ && !thread_.joinable()) thread_ = std::thread([this] { run_thread(); });
}

bool Driver::stop() {
  {
    std::unique_lock lock = claim();
    if (std::exchange(stopping_, true)) return false;
    for (Driven* const one : driven_) {
      if (one == job_) {
        one->stopped_ = true;
        one->engine_.abort(monotonic_now());
      } else {
        one->engine_.abort_for_good(one->rank_, "the communicator of the job was destroyed",
                                    monotonic_now());
      }
      one->quiet_ = false;
    }
    const auto still = [this] {
      return std::all_of(driven_.begin(), driven_.end(),
                         [](const Driven* one) { return one->is_still(); });
    };
    end_calls(lock, still, monotonic_now() + kStopPatience);
    if (job_ != nullptr) job_->drop_calls(lock);
  }
  needed_.notify_all();
  return true;
}

/// Returns when no thread drives, when `ended()`, or at `limit`. REQUIRES: the mutex, which it lets
/// go of meanwhile.
template <typename Ended>
void Driver::await_driver(std::unique_lock<std::mutex>& lock, Ended ended, Time limit) {
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
void Driver::await_port(std::unique_lock<std::mutex>& lock, const Driven& one) {
  ++port_wanted_;
  await_driver(
      lock, [this, &one] { return working_ != &one && !asleep_; }, kNever);
  --port_wanted_;
}

/// Drives until `ended()`, at most until `limit`, or lets the thread that drives do so. A peer that
/// misses an abort has a deadline. REQUIRES: the mutex, which it lets go of meanwhile.
void Driver::end_calls(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ended,
                       Time limit) {
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
  for (const Driven* const one : driven_) calls += one->engine_.outstanding();
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
}

void Driver::poll(Duration most) {
  std::unique_lock lock = claim();
  if (driving_) return;
  const Time until = after(monotonic_now(), most);
  int looks = 0;  // drive() looks before its round, after it, and after its sleep
  drive(
      lock, [&] { return looks++ >= 2; }, until);
}

Time Driver::last_heard(Rank rank) {
  const std::unique_lock lock = claim();
  Time latest{};
  for (const Driven* const one : driven_) {
    const Rank own = one->line_.own_rank(rank);
    if (own != kUnknownRank) latest = std::max(latest, one->engine_.endpoint().last_heard(own));
  }
  return latest;
}

PortStatistics Driver::port_statistics() {
  const std::unique_lock lock = claim();
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
  }
  flight_.look();
  changed_.notify_all();
}

void Driver::sleep_while(std::uint64_t seen, Duration most) {
  std::unique_lock lock(changes_mutex_);
  changed_.wait_for(lock, most, [&] { return changes_ != seen; });
}

/// Does `work`. After an exception the port counts as broken: the calls of all communicators end as
/// failed. REQUIRES: the mutex, which it has again at the end.
template <typename Work>
void Driver::guard(std::unique_lock<std::mutex>& lock, Work work) {
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
  for (Driven* const one : driven_) one->engine_.progress(monotonic_now());
  announce();
}

/// Moves packets until `finished`, sleeping in the port when there is nothing to do, at most until
/// `limit` at a time.
template <typename Finished>
void Driver::drive(std::unique_lock<std::mutex>& lock, Finished finished, Time limit) {
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
    for (Driven* const one : driven_) one->tell_silent();
  });
}

/// std::mutex is not fair: lets the threads that wait in claim() have it first.
void Driver::step_aside(std::unique_lock<std::mutex>& lock) {
  while (claims_ > 0) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

void Driver::stop_driving(std::unique_lock<std::mutex>& lock) {
  if (!lock.owns_lock()) lock.lock();
  asleep_ = false;
  driving_ = false;
  announce();
}

/// One round of work. False when nothing moved and no call ended.
bool Driver::round(std::unique_lock<std::mutex>& lock) {
  const Driven* const worked = run_piece(lock);
  bool moved = false;
  // That of the job comes first: it receives for all.
  for (std::size_t i = 0; i < driven_.size(); ++i) {
    Driven& one = *driven_[i];
    if (&one != job_ && &one != worked && !one.has_work(monotonic_now())) continue;
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): driven_ holds no null pointer
    if (one.progress(&one == worked)) moved = true;
  }
  for (Driven* const one : driven_) {
    if (moved && one->meter_.on()) one->meter_.note(port_.statistics(), monotonic_now());
  }
  if (job_ != nullptr && flight_.wants_snapshot(moved)) {
    flight_.publish(job_->engine_.snapshot(monotonic_now()));
  }
  return moved;
}

void Driver::sleep(std::unique_lock<std::mutex>& lock, Time limit) {
  if (port_wanted_ > 0) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    return;
  }
  Time until = limit;
  for (const Driven* const one : driven_) until = std::min(until, one->engine_.next_deadline());
  before_sleep_ = port_.statistics();
  refusals_.look(flight_.recorder(), before_sleep_, monotonic_now());
  asleep_ = true;
  lock.unlock();
  port_.wait(monotonic_now(), until);
  lock.lock();
  asleep_ = false;
}

/// Runs a piece of work without the mutex, so that others may submit, abort and look meanwhile.
/// Returns the owner; nullptr when there is no piece.
Driven* Driver::run_piece(std::unique_lock<std::mutex>& lock) {
  Driven* working = nullptr;
  for (std::size_t i = 0; i < driven_.size() && working == nullptr; ++i) {
    Driven* const one = driven_[(turn_ + i) % driven_.size()];
    if (one->engine_.has_piece()) working = one;
  }
  if (working == nullptr) return nullptr;
  ++turn_;
  const Piece piece = working->engine_.take_piece(monotonic_now());
  working_ = working;
  lock.unlock();
  piece.run();
  lock.lock();
  working_ = nullptr;
  working->engine_.piece_ended(monotonic_now());
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
