#include "transport/ports/send_lanes.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/clock.h"
#include "xdp/base/quiet_thread.h"
#include "xdp/base/system_limits.h"

namespace tarpon {
namespace {

/// A lane without trains looks for new ones this long before it sleeps.
constexpr Duration kLaneSpin = 20us;
/// How soon a lane whose socket has no room sees a recall().
constexpr int kRoomPatienceMs = 1;

}  // namespace

class SendLanes::Lane {
 public:
  struct Slot {
    std::unique_ptr<TrainMessages> message;  // one train; null: the thread ends
    int descriptor = -1;
    std::uint32_t train = 0;
    int error = 0;  // errno of the send
  };

  explicit Lane(SendLanes& all)
      : all_(all),
        slots_(std::bit_ceil(all.options_.frames + 1)),  // one is for the end
        mask_(static_cast<std::uint32_t>(slots_.size() - 1)) {}
  ~Lane() {
    if (!thread_.joinable()) return;
    give({});
    tell();
    thread_.join();
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Throws std::system_error.
  void start() {
    thread_ = quiet_thread([this] { run(); });
  }

  // -- the driver's side; positions count slots, and wrap

  std::uint32_t held() const { return given_here_ - settled_; }
  std::uint32_t position() const { return given_here_; }
  /// Whether all slots before `position` are settled.
  bool has_settled(std::uint32_t position) const {
    return static_cast<std::int32_t>(settled_ - position) >= 0;
  }

  void give(Slot slot) { slots_[given_here_++ & mask_] = std::move(slot); }
  /// Publishes the given slots to the thread.
  void tell() {
    if (given_.load(std::memory_order_relaxed) == given_here_) return;
    given_.store(given_here_);
    given_.notify_one();
  }

  /// Whether it has sent trains since the last settle().
  bool has_sent() const { return done_.load() != settled_; }

  /// Calls `settle(slot)` for each slot that is done.
  template <typename Settle>
  void settle(Settle settle) {
    for (const std::uint32_t done = done_.load(std::memory_order_acquire); settled_ != done;
         ++settled_) {
      settle(slots_[settled_ & mask_]);
    }
  }

  void recall() { recalled_ = true; }
  void await_recalled() {
    while (done_.load(std::memory_order_acquire) != given_here_) std::this_thread::yield();
    recalled_ = false;
  }

 private:
  void run() {
    for (std::uint32_t next = 0;; ++next) {
      await(next);
      Slot& slot = slots_[next & mask_];
      if (!slot.message) return;
      slot.error = send(slot);
      done_.store(next + 1);
      all_.note_sent();
    }
  }

  /// Returns when slot `next` was given.
  void await(std::uint32_t next) {
    if (given_.load(std::memory_order_acquire) != next) return;
    const Time until = monotonic_now() + kLaneSpin;
    while (monotonic_now() < until) {
      std::this_thread::yield();
      if (given_.load(std::memory_order_acquire) != next) return;
    }
    given_.wait(next);
  }

  int send(const Slot& slot) const {
    const msghdr& message = slot.message->data()->msg_hdr;
    // The headers are in the cache of the driver's core: fetches them together, not one by one.
    for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
      __builtin_prefetch(message.msg_iov[i].iov_base);
    }
    while (!recalled_.load(std::memory_order_acquire)) {
      // The driver may overwrite lent memory once the peer has answered. ThreadSanitizer does not
      // see that the answer comes after this read, so it must not see the read, as with io_uring.
      if (::syscall(SYS_sendmsg, slot.descriptor, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
        return 0;
      }
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return errno;
      pollfd room{.fd = slot.descriptor, .events = POLLOUT, .revents = 0};
      ::poll(&room, 1, kRoomPatienceMs);
    }
    return ECANCELED;
  }

  SendLanes& all_;
  std::vector<Slot> slots_;
  const std::uint32_t mask_;
  std::uint32_t given_here_ = 0;  // the driver's: `given_` after the next tell()
  std::uint32_t settled_ = 0;     // the driver's
  std::atomic<bool> recalled_ = false;
  alignas(64) std::atomic<std::uint32_t> given_ = 0;
  alignas(64) std::atomic<std::uint32_t> done_ = 0;
  std::thread thread_;
};

SendLanes::SendLanes(const Options& options, std::span<const sockaddr_in> destinations,
                     WakeEvent& driver)
    : options_(options),
      destinations_(destinations.begin(), destinations.end()),
      driver_(driver),
      ways_(destinations.size() * options.flows) {
  messages_.reserve(options.frames);  // settle() must not throw
}

SendLanes::~SendLanes() = default;

Result<std::unique_ptr<SendLanes>> SendLanes::start(const Options& options,
                                                    std::span<const sockaddr_in> destinations,
                                                    WakeEvent& driver) {
  std::unique_ptr<SendLanes> all(new SendLanes(options, destinations, driver));
  try {
    for (std::uint32_t i = 0; i < options.count; ++i) {
      all->lanes_.push_back(std::make_unique<Lane>(*all));
      all->lanes_.back()->start();
    }
  } catch (const std::system_error& error) {
    return fail(start_error(error.code().value(), "cannot start a thread that sends"));
  }
  return all;
}

/// The lane of `way`, while it holds trains of it or is no busier than the others; else the least
/// busy one.
SendLanes::Lane& SendLanes::lane_for(const Way& way) {
  Lane& least = **std::min_element(
      lanes_.begin(), lanes_.end(),
      [](const auto& one, const auto& other) { return one->held() < other->held(); });
  if (way.lane == nullptr) return least;
  const bool holds = !way.lane->has_settled(way.position);
  return holds || way.lane->held() < least.held() + 2 ? *way.lane : least;
}

/// Null if there is no memory.
std::unique_ptr<TrainMessages> SendLanes::take_message() {
  if (messages_.empty()) {
    try {
      return std::make_unique<TrainMessages>(destinations_, kMaxGsoSegments, 1);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  std::unique_ptr<TrainMessages> message = std::move(messages_.back());
  messages_.pop_back();
  message->clear();
  return message;
}

void SendLanes::give(TrainPool& pool, const Descriptor& descriptor) {
  while (pool.queued() > 0) {
    auto message = take_message();
    if (!message) break;
    const std::uint32_t number = pool.pop();
    const Train& train = pool.train(number);
    message->add(pool, number);
    Way& way = ways_[train.peer * options_.flows + train.flow];
    Lane& lane = lane_for(way);
    lane.give({.message = std::move(message),
               .descriptor = descriptor(train.flow),
               .train = number,
               .error = 0});
    way = {.lane = &lane, .position = lane.position()};
    ++held_;
  }
  for (const auto& lane : lanes_) lane->tell();
}

/// A lane, in its thread, has sent a train.
void SendLanes::note_sent() {
  if (asleep_.load() && asleep_.exchange(false)) driver_.wake();
}

int SendLanes::settle(TrainPool& pool) {
  asleep_ = false;
  int fatal = 0;
  for (const auto& lane : lanes_) {
    lane->settle([&](Lane::Slot& slot) {
      messages_.push_back(std::move(slot.message));
      --held_;
      ++settled_;
      if (pool.settle(slot.train, slot.error) == SendOutcome::fatal) fatal = slot.error;
    });
  }
  return fatal;
}

int SendLanes::recall(TrainPool& pool) {
  for (const auto& lane : lanes_) lane->recall();
  for (const auto& lane : lanes_) lane->await_recalled();
  return settle(pool);
}

bool SendLanes::fall_asleep() {
  asleep_ = true;
  const bool sent =
      std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->has_sent(); });
  if (sent) asleep_ = false;
  return !sent;
}

}  // namespace tarpon
