// IPv4 TCP sockets of the rendezvous: non-blocking, close-on-exec, every wait bounded.
#pragma once

#include <netinet/in.h>
#include <poll.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/time.h"
#include "xdp/result.h"

namespace tarpon::rendezvous {

/// Owns a file descriptor. Move-only.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  void reset();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// "10.0.0.1", and "10.0.0.1:29500".
std::string host_text(const sockaddr_in& address);
std::string host_port_text(const sockaddr_in& address);

/// The address of `host`, an IPv4 address or a name. A name takes as long as the system's resolver,
/// which has a bound of its own. Errors: invalid_argument (no such name), unavailable (resolver).
Result<sockaddr_in> resolve(const std::string& host, std::uint16_t port);

/// Listens at `address`; port 0 takes any. Errors: io (in use, not an address of this host).
Result<Fd> listen_at(const sockaddr_in& address);

/// The address a socket is bound to.
sockaddr_in local_name(const Fd& socket);

/// Connects until `deadline`. Errors: unavailable with the reason, timeout.
Result<Fd> connect_to(const sockaddr_in& address, Time deadline);

/// One waiting connection, TCP_NODELAY set; an empty Fd when none waits. Errors: io, when this
/// process can open no more sockets.
Result<Fd> accept_one(const Fd& listener);

/// Sleeps until one of `entries` is ready or `until`; may return early.
void poll_until(std::vector<pollfd>& entries, Time until);

/// Sleeps until `until`.
void sleep_until(Time until);

}  // namespace tarpon::rendezvous
