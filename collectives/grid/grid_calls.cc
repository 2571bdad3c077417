#include "collectives/grid/grid_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "transport/clock.h"
#include "xdp/base/system_limits.h"

namespace tarpon::grid {

std::shared_ptr<GridCalls> GridCalls::make() {
  return {new GridCalls, [](GridCalls* calls) {
            if (!calls->is_forked()) delete calls;
          }};
}

Result<void> GridCalls::check_process() const {
  if (!is_forked()) return {};
  return fail(Error::Code::unavailable,
              fmt::format("process {} was forked from process {}, whose communicator this is: use "
                          "it there, or connect in this process",
                          ::getpid(), process_));
}

Result<void> GridCalls::start(const GridParts& parts) {
  engine_.emplace(parts);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(start_error(error.code().value(), "cannot start the thread that makes progress"));
  }
  return {};
}

void GridCalls::note_change() {
  const std::lock_guard lock(changes_mutex_);
  ++changes_;
  changed_.notify_all();
  if (waiting_ == 0) needed_.notify_one();
}

std::uint64_t GridCalls::changes() const {
  const std::lock_guard lock(changes_mutex_);
  return changes_;
}

std::shared_ptr<PendingCall> GridCalls::submit(const AllreduceArguments& arguments) {
  return submit_any(arguments);
}

std::shared_ptr<PendingCall> GridCalls::submit(const CollectiveArguments& arguments) {
  return submit_any(arguments);
}

template <typename Arguments>
std::shared_ptr<PendingCall> GridCalls::submit_any(const Arguments& arguments) {
  std::shared_ptr<PendingCall> call;
  {
    const std::lock_guard lock(mutex_);
    call = engine_->submit(arguments, monotonic_now());
  }
  advance();
  return call;
}

/// Has all calls advance as far as they can.
void GridCalls::advance() {
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    ended = engine_->progress(monotonic_now());
    look_at_ = engine_->next_deadline();
  }
  if (ended) note_change();
}

/// Sleeps until `ready()`, or something is due. REQUIRES: the lock of changes_mutex_.
template <typename Ready>
void GridCalls::sleep(std::unique_lock<std::mutex>& lock, std::condition_variable& news,
                      Ready ready) {
  const Time due = look_at_;
  if (due == kNever) return news.wait(lock, ready);
  const Time now = monotonic_now();
  news.wait_for(lock, due - std::min(due, now), ready);
}

void GridCalls::wait(const std::shared_ptr<PendingCall>& call) {
  {
    const std::lock_guard lock(changes_mutex_);
    ++waiting_;
  }
  while (true) {
    const std::uint64_t seen = changes();
    if (call->done) break;
    advance();
    if (call->done) break;
    std::unique_lock lock(changes_mutex_);
    sleep(lock, changed_, [&] { return changes_ != seen; });
  }
  const std::lock_guard lock(changes_mutex_);
  if (--waiting_ == 0) needed_.notify_one();
}

void GridCalls::poll(Duration most) {
  const std::uint64_t seen = changes();
  advance();
  std::unique_lock lock(changes_mutex_);
  changed_.wait_for(lock, most, [&] { return changes_ != seen; });
}

void GridCalls::run() {
  std::uint64_t seen = 0;
  std::unique_lock lock(changes_mutex_);
  while (!stopping_) {
    seen = changes_;
    const bool advances = waiting_ == 0;
    lock.unlock();
    if (advances) advance();
    lock.lock();
    sleep(lock, needed_,
          [&] { return stopping_ || (waiting_ == 0 && (changes_ != seen || !advances)); });
  }
}

void GridCalls::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    engine_->abort(reason);
  }
  note_change();
}

void GridCalls::stop() {
  if (engine_) {
    const std::lock_guard lock(mutex_);
    engine_->stop();
  }
  {
    const std::lock_guard lock(changes_mutex_);
    stopping_ = true;
    needed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void GridCalls::end_calls() {
  advance();
}

}  // namespace tarpon::grid
