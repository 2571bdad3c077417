// IPv4 TCP sockets of the rendezvous.
#include "collectives/rendezvous/sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "collectives/rank_list.h"
#include "collectives/rendezvous/address.h"
#include "collectives/rendezvous/waiting_notice.h"
#include "transport/clock.h"

namespace tarpon::rendezvous {
namespace {

// A peer that drops SYNs would keep one connect() busy through the kernel's growing retransmission
// pauses; a fresh attempt finds a peer that has come up meanwhile sooner.
constexpr Duration kAttempt = 3s;

constexpr int kBacklog = 4096;  // the kernel lowers it to net.core.somaxconn

constexpr Duration kFirstLookUp = 100ms;  // pause between two questions for a name; doubles
constexpr Duration kLookUpPause = 1s;
constexpr Duration kQuickAnswer = 1s;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// The addresses of `host` in `family`; null with `error` (EAI_...) if there are none.
AddressList look_up(const std::string& host, int family, int& error) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  return {error == 0 ? found : nullptr, &freeaddrinfo};
}

const sockaddr* generic(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

void send_small_messages_at_once(const FileDescriptor& socket) {
  const int on = 1;
  // Only speed depends on it, so a refusal is no error.
  (void)setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// The kernel lets a socket connect to itself when the port it picks for its own end is the wanted
// one and nobody listens there; waiting for rank 0 on a high port meets that sooner or later.
bool is_connected_to_itself(const FileDescriptor& socket, const sockaddr_in& peer) {
  const sockaddr_in own = local_name(socket);
  return own.sin_port == peer.sin_port && own.sin_addr.s_addr == peer.sin_addr.s_addr;
}

}  // namespace

std::string host_text(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return text;
}

std::string host_port_text(const sockaddr_in& address) {
  return fmt::format("{}:{}", host_text(address), ntohs(address.sin_port));
}

Result<sockaddr_in> resolve(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1) return address;

  if (auto wrong = wrong_host(host)) return fail(Error::Code::invalid_argument, *std::move(wrong));
  const Time start = monotonic_now();
  int error = 0;
  if (const AddressList found = look_up(host, AF_INET, error)) {
    std::memcpy(&address.sin_addr, &reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr,
                sizeof address.sin_addr);
    return address;
  }
  // A resolver that was slow to say no would be so again.
  int ignored = 0;
  if (monotonic_now() - start < kQuickAnswer && look_up(host, AF_INET6, ignored)) {
    return fail(Error::Code::invalid_argument,
                fmt::format("host {} has IPv6 addresses only, and IPv6 is not supported yet: give "
                            "an IPv4 address, or a name that has one",
                            host));
  }
  return fail(Error::Code::unavailable,
              fmt::format("host {} is not known ({}): give an IPv4 address, or a name that the "
                          "resolver knows",
                          host, gai_strerror(error)));
}

Result<sockaddr_in> resolve_until(const std::string& host, std::uint16_t port, Time deadline,
                                  RendezvousObserver* observer) {
  WaitingNotice notice(observer);
  const Time start = monotonic_now();
  for (Duration pause = kFirstLookUp;; pause = std::min(2 * pause, kLookUpPause)) {
    auto found = resolve(host, port);
    if (found || found.error().code != Error::Code::unavailable) return found;
    const Time now = monotonic_now();
    if (now >= deadline) {
      if (now - start < kFirstLookUp) return found;
      Error error = found.error();
      error.message +=
          fmt::format("; asked for {}",
                      duration_text(std::chrono::floor<std::chrono::milliseconds>(now - start)));
      return fail(std::move(error));
    }
    notice.look([&] { return "waiting for a name: " + found.error().message; });
    sleep_until(std::min(deadline, now + pause));
  }
}

void limit_segments(const FileDescriptor& socket) {
  const int bytes = 256;
  // The kernel refuses no such value; without it the path's MTU has to be known.
  (void)setsockopt(socket.get(), IPPROTO_TCP, TCP_MAXSEG, &bytes, sizeof bytes);
}

Result<FileDescriptor> listen_at(const sockaddr_in& address) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return fail_system(errno, "socket");
  const int on = 1;
  if (setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
    return fail_system(errno, "setsockopt(SO_REUSEADDR)");
  }
  limit_segments(socket);
  if (bind(socket.get(), generic(address), sizeof address) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    const int error = errno;
    Error failure =
        Error::system(error, fmt::format("cannot listen at {}", host_port_text(address)));
    if (error == EADDRINUSE) {
      failure.message +=
          ": stop the program that listens there (perhaps another rank 0), or choose another port";
    } else if (error == EADDRNOTAVAIL) {
      failure.message +=
          ": start rank 0 on the host that has this address, or name one of this host";
    }
    return fail(std::move(failure));
  }
  return socket;
}

Result<FileDescriptor> listen_in(sockaddr_in address, const PortRange& ports) {
  return open_in(ports, "TCP port", [&](std::uint16_t port) {
    address.sin_port = htons(port);
    return listen_at(address);
  });
}

sockaddr_in local_name(const FileDescriptor& socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return address;
}

Result<FileDescriptor> connect_to(const sockaddr_in& address, Time deadline) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return fail_system(errno, "socket");
  limit_segments(socket);
  int error = connect(socket.get(), generic(address), sizeof address) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    std::vector<pollfd> entries{{socket.get(), POLLOUT, 0}};
    const Time until = std::min(deadline, monotonic_now() + kAttempt);
    while (entries[0].revents == 0 && monotonic_now() < until) poll_until(entries, until);
    if (entries[0].revents == 0) return fail(Error::Code::timeout, "no answer to the connection");
    socklen_t length = sizeof error;
    if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  }
  if (error != 0) return fail({Error::Code::unavailable, error, std::strerror(error)});
  if (is_connected_to_itself(socket, address)) {
    return fail({Error::Code::unavailable, ECONNREFUSED, std::strerror(ECONNREFUSED)});
  }
  send_small_messages_at_once(socket);
  return socket;
}

bool lacks_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

Result<FileDescriptor> accept_one(const FileDescriptor& listener) {
  FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) {
    send_small_messages_at_once(socket);
    return socket;
  }
  const int error = errno;
  if (lacks_resources(error)) return fail_system(error, "cannot accept another rank");
  // None waits, or the one that waited has gone again.
  return FileDescriptor();
}

void poll_until(std::vector<pollfd>& entries, Time until) {
  // An hour at most, so that kNever fits poll()'s int; callers loop.
  const Duration left =
      std::clamp<Duration>(until - std::min(monotonic_now(), until), Duration::zero(), 1h);
  const auto wait_ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  for (pollfd& entry : entries) entry.revents = 0;
  (void)poll(entries.data(), entries.size(), static_cast<int>(wait_ms));
}

void sleep_until(Time until) {
  std::vector<pollfd> none;
  while (monotonic_now() < until) poll_until(none, until);
}

}  // namespace tarpon::rendezvous
