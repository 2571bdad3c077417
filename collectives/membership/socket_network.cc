#include "collectives/membership/socket_network.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "collectives/rendezvous/sockets.h"

namespace tarpon::mesh {
namespace {

constexpr StreamId kWakeUp = UINT64_MAX, kDoor = UINT64_MAX - 1;  // beside the streams
constexpr Duration kDoorRest = 100ms;
constexpr std::size_t kMaxRead = 256u << 10;  // of one stream in one round

/// Returns the timeout for epoll_wait(); -1: none.
int wait_ms(Time now, Time until) {
  if (until == kNever) return -1;
  if (until <= now) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  return static_cast<int>(std::min<std::int64_t>(left, 3'600'000));
}

/// Sets TCP options. If the kernel refuses one, only speed is lost, or a dead connection is noticed
/// later.
void tune(int socket) {
  const int on = 1, idle_s = 10, every_s = 2;
  const auto unacknowledged = static_cast<unsigned>(SocketNetwork::kUnacknowledged / 1ms);
  (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
  (void)setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged, sizeof unacknowledged);
}

/// Makes `socket` connect from the address of `listener`, if there is one. Returns an errno, or 0.
int leave_from(const FileDescriptor& socket, const FileDescriptor& listener) {
  if (!listener) return 0;
  const int on = 1;
  // The port follows from connect(): more connections than ports are possible. If the kernel cannot
  // do that, the port is chosen now.
  (void)setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  sockaddr_in own = rendezvous::local_name(listener);
  own.sin_port = 0;
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0 ? 0 : errno;
}

std::string end_text(int error, SecureSocket::Trouble trouble) {
  if (trouble != SecureSocket::Trouble::none) {
    return std::string("TLS of a control connection ended: ") + text(trouble);
  }
  if (error == 0 || error == ECONNRESET) return "control connection reset";
  return std::string("control connection lost: ") + std::strerror(error);
}

}  // namespace

Result<Door> open_door(const std::string& address, const PortRange& ports) {
  auto wanted = rendezvous::resolve(address, 0);
  if (!wanted) return fail(wanted.error());
  auto listener = rendezvous::listen_in(*wanted, ports);
  if (!listener) return fail(listener.error());
  const std::uint16_t port = ntohs(rendezvous::local_name(*listener).sin_port);
  return Door{*std::move(listener), port};
}

Result<std::unique_ptr<SocketNetwork>> SocketNetwork::make(Door door,
                                                           std::vector<sockaddr_in> doors,
                                                           std::shared_ptr<const TlsContext> tls) {
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return fail_system(errno, "epoll for the control mesh");
  auto event = WakeEvent::open();
  if (!event) return fail(event.error());
  std::unique_ptr<SocketNetwork> network(new SocketNetwork(
      std::move(door), std::move(doors), std::move(tls), std::move(epoll), *std::move(event)));
  const bool watched = network->watch(EPOLL_CTL_ADD, network->event_.fd(), kWakeUp, EPOLLIN) &&
                       (!network->listener_ ||
                        network->watch(EPOLL_CTL_ADD, network->listener_.get(), kDoor, EPOLLIN));
  if (!watched) return fail_system(errno, "epoll_ctl for the control mesh");
  return network;
}

SocketNetwork::SocketNetwork(Door door, std::vector<sockaddr_in> doors,
                             std::shared_ptr<const TlsContext> tls, FileDescriptor epoll,
                             FileDescriptor event)
    : listener_(std::move(door.listener)),
      doors_(std::move(doors)),
      tls_(std::move(tls)),
      epoll_(std::move(epoll)),
      event_(std::move(event)) {}

bool SocketNetwork::watch(int operation, int fd, StreamId stream, std::uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = stream}};
  return epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
}

StreamId SocketNetwork::add(FileDescriptor socket, bool connecting, int error) {
  const StreamId stream = ++last_;
  const std::uint32_t events = connecting ? EPOLLOUT : EPOLLIN;
  if (error == 0 && !watch(EPOLL_CTL_ADD, socket.get(), stream, events)) error = errno;
  if (rendezvous::lacks_resources(error)) {
    shortage_ = Error::system(error, "cannot make a connection of the control mesh");
  }
  streams_[stream] = {
      SecureSocket(std::move(socket), tls_,
                   connecting ? SecureSocket::End::client : SecureSocket::End::server),
      connecting ? Phase::connecting : Phase::open, 0, error};
  if (error != 0) {
    failed_.push_back(stream);
    wake();
  }
  return stream;
}

// -- Network
// ---------------------------------------------------------------------------------------

StreamId SocketNetwork::connect(Rank peer) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = socket ? 0 : errno;
  if (error == 0) {
    tune(socket.get());
    rendezvous::limit_segments(socket);
    error = leave_from(socket, listener_.descriptor());
  }
  if (error == 0) {
    const auto* const door = reinterpret_cast<const sockaddr*>(&doors_[peer]);
    if (::connect(socket.get(), door, sizeof doors_[peer]) != 0 && errno != EINPROGRESS) {
      error = errno;
    }
  }
  const StreamId stream = add(std::move(socket), true, error);
  streams_[stream].peer = peer;
  return stream;
}

std::size_t SocketNetwork::write(StreamId stream, std::string_view bytes) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return bytes.size();
  SecureSocket& socket = found->second.socket;
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t sent = socket.write(bytes.data() + written, bytes.size() - written);
    if (sent > 0) {
      written += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      // Cannot fail: the socket is watched already.
      (void)watch(EPOLL_CTL_MOD, socket.get(), stream, EPOLLIN | EPOLLOUT);
      break;
    } else if (sent == 0 || errno != EINTR) {
      return bytes.size();  // read() finds the end, and what was received before it
    }
  }
  return written;
}

void SocketNetwork::close(StreamId stream) {
  streams_.erase(stream);
}

void SocketNetwork::close_all() {
  streams_.clear();
  listener_ = {};
}

// -- events
// ----------------------------------------------------------------------------------------

void SocketNetwork::wait(Time now, Time until) {
  const int limit = wait_ms(now, std::min(until, listen_at_));
  ready_count_ = epoll_wait(epoll_.get(), ready_.data(), static_cast<int>(ready_.size()), limit);
}

void SocketNetwork::dispatch(Streams& streams, Time now) {
  for (const StreamId stream : std::exchange(failed_, {})) {
    const auto found = streams_.find(stream);
    if (found == streams_.end()) continue;
    const int error = found->second.error;
    streams_.erase(found);
    streams.ended(stream, std::strerror(error), error == ECONNREFUSED, now);
  }
  const int count = std::exchange(ready_count_, 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = ready_[static_cast<std::size_t>(i)];
    const StreamId stream = event.data.u64;
    if (stream == kWakeUp) {
      event_.drain();
    } else if (stream == kDoor) {
      accept_some(streams, now);
    } else {
      handle(stream, event.events, streams, now);
    }
  }
  if (now < listen_at_) return;
  listen_at_ = kNever;
  (void)watch(EPOLL_CTL_ADD, listener_.get(), kDoor, EPOLLIN);  // as make() does
}

/// The ranks that have the address of the other end. Bit r: rank r.
std::uint64_t SocketNetwork::ranks_at(const FileDescriptor& socket) const {
  sockaddr_in other{};
  socklen_t length = sizeof other;
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&other), &length) != 0) return 0;
  std::uint64_t ranks = 0;
  for (std::size_t rank = 0; rank < doors_.size(); ++rank) {
    if (doors_[rank].sin_addr.s_addr == other.sin_addr.s_addr)
      ranks |= bit(static_cast<Rank>(rank));
  }
  return ranks;
}

/// Accepts at most kAccepts connections. If no descriptor is left, the door is not watched for
/// kDoorRest. Connections that are not accepted stay in the kernel's queue.
void SocketNetwork::accept_some(Streams& streams, Time now) {
  for (int accepted = 0; accepted < kAccepts; ++accepted) {
    auto socket = rendezvous::accept_one(listener_.descriptor());
    if (!socket) {
      shortage_ = socket.error();
      (void)watch(EPOLL_CTL_DEL, listener_.get(), kDoor, 0);
      listen_at_ = now + kDoorRest;
      return;
    }
    if (!*socket) return;
    tune(socket->get());
    const std::uint64_t ranks = ranks_at(*socket);
    streams.accepted(add(*std::move(socket), false, 0), now, ranks);
  }
}

void SocketNetwork::handle(StreamId stream, std::uint32_t events, Streams& streams, Time now) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  Stream& one = found->second;
  if (one.phase == Phase::connecting) return finish_connect(stream, streams, now);
  if (one.phase == Phase::handshake) return go_on_with_handshake(stream, streams, now);
  if ((events & EPOLLOUT) != 0) {
    (void)watch(EPOLL_CTL_MOD, one.socket.get(), stream, EPOLLIN);  // write() asks again
    streams.writable(stream);
  }
  read(stream, streams, now);
}

void SocketNetwork::finish_connect(StreamId stream, Streams& streams, Time now) {
  Stream& one = streams_.at(stream);
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(one.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  // The kernel connects a socket to itself if it gives the socket the wanted port, which is free.
  const sockaddr_in own = rendezvous::local_name(one.socket.descriptor());
  const sockaddr_in& door = doors_[one.peer];
  if (own.sin_port == door.sin_port && own.sin_addr.s_addr == door.sin_addr.s_addr) {
    error = ECONNREFUSED;
  }
  if (error != 0) {
    streams_.erase(stream);
    return streams.ended(stream, std::strerror(error), error == ECONNREFUSED, now);
  }
  one.phase = Phase::handshake;
  (void)watch(EPOLL_CTL_MOD, one.socket.get(), stream, EPOLLIN);
  go_on_with_handshake(stream, streams, now);
}

void SocketNetwork::go_on_with_handshake(StreamId stream, Streams& streams, Time now) {
  Stream& one = streams_.at(stream);
  if (one.socket.handshake() == 1) {
    one.phase = Phase::open;
    return streams.connected(stream, now);
  }
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return;
  const std::string why = end_text(error, one.socket.trouble());
  streams_.erase(stream);
  streams.ended(stream, why, false, now);
}

void SocketNetwork::read(StreamId stream, Streams& streams, Time now) {
  std::array<char, 16384> piece;
  for (std::size_t all = 0; all < kMaxRead;) {
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return;
    const ssize_t got = found->second.socket.read(piece.data(), piece.size());
    if (got > 0) {
      all += static_cast<std::size_t>(got);
      streams.received(stream, {piece.data(), static_cast<std::size_t>(got)}, now);
      continue;
    }
    const int error = got == 0 ? 0 : errno;
    if (error == EINTR) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) return;
    const std::string why = end_text(error, found->second.socket.trouble());
    streams_.erase(stream);
    return streams.ended(stream, why, false, now);
  }
}

}  // namespace tarpon::mesh
