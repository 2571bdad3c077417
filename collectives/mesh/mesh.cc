// The thread that reads the mesh, and what others send through it.
#include "collectives/mesh/mesh.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <utility>

#include "collectives/rendezvous/connection.h"
#include "transport/clock.h"
#include "transport/ports/wake_event.h"

namespace tarpon::mesh {
namespace {

constexpr std::uint64_t kWakeUp = UINT64_MAX;  // beside the ranks

/// For epoll_wait(): -1 for ever.
int wait_ms(Time now, Time until) {
  if (until == kNever) return -1;
  if (until <= now) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  return static_cast<int>(std::min<std::int64_t>(left, 3'600'000));
}

}  // namespace

class Mesh::Impl {
 public:
  Impl(Rank rank, std::vector<Link> links, FileDescriptor epoll, FileDescriptor event)
      : rank_(rank), peers_(links.size()), epoll_(std::move(epoll)), event_(std::move(event)) {
    for (std::size_t i = 0; i < links.size(); ++i) peers_[i].link = std::move(links[i]);
  }

  ~Impl() {
    say_goodbye();
    stop();
  }

  Result<void> watch() {
    epoll_event wake{.events = EPOLLIN, .data = {.u64 = kWakeUp}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.fd(), &wake) != 0) {
      return fail_system(errno, "epoll_ctl for the control mesh");
    }
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (!peers_[i].link.is_open()) continue;
      epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
      if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, peers_[i].link.fd(), &event) != 0) {
        return fail_system(errno, "epoll_ctl for the control mesh");
      }
    }
    return {};
  }

  void start(Handlers handlers) {
    handlers_ = std::move(handlers);
    thread_ = std::thread([this] { run(); });
  }

  void send(Rank to, FrameKind kind, std::string_view body) {
    const std::lock_guard lock(mutex_);
    send_locked(to, kind, body);
  }

  void send_all(FrameKind kind, std::string_view body) {
    const std::lock_guard lock(mutex_);
    for (std::size_t to = 0; to < peers_.size(); ++to) {
      send_locked(static_cast<Rank>(to), kind, body);
    }
  }

  void wake() { event_.wake(); }

  void say_goodbye() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(goodbye_said_, true)) return;
    for (std::size_t to = 0; to < peers_.size(); ++to) {
      send_locked(static_cast<Rank>(to), FrameKind::goodbye, {});
    }
  }

  void stop() {
    stopping_ = true;
    wake();
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Peer {
    Link link;
    bool goodbye = false;
    bool gone = false;      // the handler knows
    bool writable = false;  // epoll watches for room to send
  };

  // REQUIRES, of what follows up to run(): the mutex.
  void send_locked(Rank to, FrameKind kind, std::string_view body) {
    Peer& peer = peers_[to];
    peer.link.send(kind, body);
    watch_for_room(to);
  }

  void watch_for_room(std::size_t index) {
    Peer& peer = peers_[index];
    if (!peer.link.is_open() || peer.link.sending() == peer.writable) return;
    peer.writable = peer.link.sending();
    epoll_event event{.events = EPOLLIN, .data = {.u64 = index}};
    if (peer.writable) event.events |= EPOLLOUT;
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, peer.link.fd(), &event);  // a watched descriptor
  }

  void run() {
    while (!stopping_) {
      const Time now = monotonic_now();
      const Time next = handlers_.tick(now);
      std::array<epoll_event, 64> events;
      const int ready = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   wait_ms(now, next));
      for (int i = 0; i < ready && !stopping_; ++i) {
        const std::uint64_t which = events[static_cast<std::size_t>(i)].data.u64;
        if (which == kWakeUp) {
          event_.drain();
        } else {
          hear(static_cast<Rank>(which));
        }
      }
    }
  }

  void hear(Rank rank) {
    Peer& peer = peers_[rank];
    {
      const std::lock_guard lock(mutex_);
      peer.link.flush();
      watch_for_room(rank);
      peer.link.read();
    }
    while (true) {
      std::optional<Frame> frame;
      {
        const std::lock_guard lock(mutex_);
        frame = peer.link.take();
      }
      if (!frame) break;
      take(rank, *frame);
    }
    bool ended = false;
    std::string why;
    {
      const std::lock_guard lock(mutex_);
      ended = !peer.link.is_open();
      if (!peer.goodbye) why = peer.link.end();
    }
    if (ended) tell_gone(rank, why);
  }

  void take(Rank from, const Frame& frame) {
    switch (frame.kind) {
      case FrameKind::goodbye: {
        {
          const std::lock_guard lock(mutex_);
          peers_[from].goodbye = true;
        }
        tell_gone(from, {});
        return;
      }
      case FrameKind::lost:
        return drop_lost(from, frame.body);
      case FrameKind::abort:
      case FrameKind::agreement:
      case FrameKind::shrink:
      case FrameKind::shrink_plan:
      case FrameKind::ping:
      case FrameKind::pong:
      case FrameKind::evict_wish:
      case FrameKind::evict:
      case FrameKind::rejoin:
      case FrameKind::rejoin_plan:
      case FrameKind::epoch_level:
      case FrameKind::epoch_question:
      case FrameKind::epoch_answer:
      case FrameKind::epoch_record:
        if (!peers_[from].gone) handlers_.frame(from, frame);
        return;
    }
  }

  /// `from` has lost a rank: so have we, if it is to be believed.
  void drop_lost(Rank from, const std::string& body) {
    if (body.size() < 4) return;
    const std::uint32_t lost = rendezvous::read_u32(body.data());
    if (lost <= from || lost >= peers_.size() || lost == rank_) return;
    hear(static_cast<Rank>(lost));  // what it says itself counts more
    if (peers_[lost].gone) return;
    {
      const std::lock_guard lock(mutex_);
      peers_[lost].link.close();
    }
    tell_gone(static_cast<Rank>(lost), body.substr(4));
  }

  void tell_gone(Rank rank, const std::string& evidence) {
    if (std::exchange(peers_[rank].gone, true)) return;
    if (!evidence.empty()) {
      std::string body;
      rendezvous::append_u32(body, rank);
      send_all(FrameKind::lost, body + evidence);
    }
    handlers_.gone(rank, evidence);
  }

  const Rank rank_;
  std::mutex mutex_;  // links and goodbyes; `gone` belongs to the thread
  std::vector<Peer> peers_;
  FileDescriptor epoll_;
  WakeEvent event_;
  Handlers handlers_;
  bool goodbye_said_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

Mesh::Mesh(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Mesh::~Mesh() = default;

Result<std::unique_ptr<Mesh>> Mesh::make(Rank rank, std::vector<Link> links) {
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return fail_system(errno, "epoll for the control mesh");
  auto event = WakeEvent::open();
  if (!event) return fail(event.error());
  auto impl = std::make_unique<Impl>(rank, std::move(links), std::move(epoll), *std::move(event));
  if (auto watched = impl->watch(); !watched) return fail(watched.error());
  return std::unique_ptr<Mesh>(new Mesh(std::move(impl)));
}

void Mesh::start(Handlers handlers) {
  impl_->start(std::move(handlers));
}
void Mesh::send(Rank to, FrameKind kind, std::string_view body) {
  impl_->send(to, kind, body);
}
void Mesh::send_all(FrameKind kind, std::string_view body) {
  impl_->send_all(kind, body);
}
void Mesh::wake() {
  impl_->wake();
}
void Mesh::say_goodbye() {
  impl_->say_goodbye();
}
void Mesh::stop() {
  impl_->stop();
}

}  // namespace tarpon::mesh
