#include "collectives/communicator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "collectives/engine.h"
#include "transport/clock.h"

namespace tarpon {
namespace {

// Barriers have a tag of their own.
constexpr std::uint32_t kBarrierTag = 0xffffffff;

// After a blocking call the progress thread waits this long before it takes over: back-to-back
// calls then cost it no wake-up.
constexpr Duration kTakeOverDelay = 2ms;

Result<void> check_tag(std::uint32_t tag) {
  if (tag != kBarrierTag) return {};
  return fail(Error::Code::invalid_argument, "allreduce: tag 4294967295 belongs to barriers");
}

}  // namespace

/// One thread at a time drives the engine and its port: a caller that waits, or the progress
/// thread. `mutex_` guards the engine; the driver lets go of it while it sleeps in the port.
class Communicator::State {
 public:
  explicit State(Connection connection)
      : control_(std::move(connection.control)),
        ranks_(std::move(connection.ranks)),
        options_(connection.agreed),
        port_(std::move(connection.port)),
        engine_(options_, *port_) {}

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
    if (thread_.joinable()) thread_.join();
  }

  Result<std::shared_ptr<PendingCall>> submit(const AllreduceArguments& arguments, bool waits) {
    const std::unique_lock lock = claim();
    auto call = engine_.submit(arguments, monotonic_now());
    if (call && !waits) {
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

  ControlChannel& control() { return *control_; }
  const std::vector<RankInfo>& ranks() const { return ranks_; }
  const EngineOptions& options() const { return options_; }

 private:
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
      const std::size_t before = engine_.outstanding();
      const bool moved = engine_.progress(monotonic_now());
      if (engine_.outstanding() != before) announce();
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
    announce();
  }

  /// Sends the aborts; whoever misses them has a deadline.
  void say_good_bye(Time limit) {
    for (Time now = monotonic_now(); now < limit; now = monotonic_now()) {
      if (engine_.progress(now)) continue;
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

  std::unique_ptr<ControlChannel> control_;
  const std::vector<RankInfo> ranks_;
  const EngineOptions options_;
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
  std::atomic<std::uint32_t> callers_ = 0;  // in wait()
  std::atomic<Time> last_caller_ = Time{};
  std::atomic<std::uint32_t> claims_ = 0;
  std::thread thread_;
};

Communicator::Communicator(std::shared_ptr<State> state) : state_(std::move(state)) {}

Communicator::~Communicator() {
  state_->stop();
}

Result<std::unique_ptr<Communicator>> Communicator::connect(const CommunicatorOptions& options) {
  auto connection = connect_ranks(options);
  if (!connection) return fail(connection.error());
  const bool threaded = options.progress_thread && connection->agreed.endpoint.world_size > 1;
  auto state = std::make_shared<State>(std::move(*connection));
  if (threaded) state->start_thread();
  return std::unique_ptr<Communicator>(new Communicator(std::move(state)));
}

Rank Communicator::rank() const {
  return state_->options().endpoint.rank;
}
std::uint32_t Communicator::world_size() const {
  return state_->options().endpoint.world_size;
}
const std::vector<RankInfo>& Communicator::ranks() const {
  return state_->ranks();
}
std::uint32_t Communicator::slot_bytes() const {
  return state_->options().slot_bytes;
}
tarpon_integrity Communicator::integrity() const {
  return state_->options().endpoint.integrity;
}
ControlChannel& Communicator::control() {
  return state_->control();
}
PortStatistics Communicator::port_statistics() const {
  return state_->port_statistics();
}
EndpointCounters Communicator::counters() const {
  return state_->counters();
}
void Communicator::poll(Duration wait) {
  state_->poll(wait);
}

Result<Report> Communicator::allreduce(const AllreduceArguments& arguments) {
  if (auto free = check_tag(arguments.tag); !free) return fail(free.error());
  return run(arguments);
}

Result<Report> Communicator::run(const AllreduceArguments& arguments) {
  auto call = state_->submit(arguments, true);
  if (!call) return fail(call.error());
  state_->wait(*call);
  return std::move((*call)->report);
}

Result<AsyncAllreduce> Communicator::allreduce_async(const AllreduceArguments& arguments) {
  if (auto free = check_tag(arguments.tag); !free) return fail(free.error());
  auto call = state_->submit(arguments, false);
  if (!call) return fail(call.error());
  return AsyncAllreduce(state_, std::move(*call));
}

Result<void> Communicator::barrier(Duration deadline) {
  std::int32_t nothing = 0;
  auto report = run({.input = &nothing,
                     .output = &nothing,
                     .count = 1,
                     .type = DataType::int32,
                     .tag = kBarrierTag,
                     .deadline = deadline});
  if (!report) return fail(report.error());
  switch (report->status) {
    case Status::complete:
      return {};
    case Status::peer_late:
      return fail(Error::Code::timeout, "barrier: " + report->detail);
    case Status::mismatch:
      return fail(Error::Code::mismatch, "barrier: " + report->detail);
    case Status::partial:  // integers run exact
    case Status::aborted:
    case Status::failed:
      break;
  }
  return fail(Error::Code::unavailable, "barrier: " + report->detail);
}

Result<void> Communicator::close(Duration deadline) {
  // Over TCP, so that it is known to have arrived; the thread serves the peers meanwhile.
  if (world_size() > 1) state_->start_thread();
  auto all = state_->control().all_gather("close", after(monotonic_now(), deadline));
  if (!all) return fail(all.error());
  return {};
}

AsyncAllreduce::AsyncAllreduce(std::shared_ptr<Communicator::State> state,
                               std::shared_ptr<PendingCall> call)
    : state_(std::move(state)), call_(std::move(call)) {}

bool AsyncAllreduce::done() const {
  return call_->done;
}

Report AsyncAllreduce::wait() {
  state_->wait(call_);
  return call_->report;
}

}  // namespace tarpon
