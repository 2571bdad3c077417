// Opening and configuring the UDP socket.
#include "transport/ports/udp_socket.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace tarpon {
namespace {

int set_option(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value);
}

// The kernel doubles what it is given, so INT_MAX / 2 is the largest that has a meaning.
void set_buffer(int fd, int forced, int limited, std::size_t bytes) {
  const int value = static_cast<int>(std::min<std::size_t>(bytes, INT_MAX / 2));
  if (set_option(fd, SOL_SOCKET, forced, value) != 0) set_option(fd, SOL_SOCKET, limited, value);
}

}  // namespace

Result<sockaddr_in> ipv4_address(const std::string& address, std::uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &result.sin_addr) != 1) {
    return fail(Error::Code::invalid_argument,
                fmt::format("address '{}': give an IPv4 address such as 10.0.0.1", address));
  }
  return result;
}

bool fatal_socket_error(int error) {
  switch (error) {
    case EBADF:
    case ENOTSOCK:
    case ENETDOWN:
    case ENODEV:
    case EFAULT:
    case EOPNOTSUPP:
      return true;
    default:
      return false;
  }
}

Result<UdpSocket> UdpSocket::open(const UdpSocketOptions& options) {
  UdpSocket result;
  auto local = ipv4_address(options.address, options.port);
  if (!local) return fail(local.error());
  result.local_ = *local;
  result.fd_ = FileDescriptor(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (result.fd() < 0) return fail_system(errno, "UDP socket");
  if (auto done = result.configure(options); !done) return fail(done.error());
  if (auto done = result.bind(options); !done) return fail(done.error());
  return result;
}

Result<void> UdpSocket::configure(const UdpSocketOptions& options) {
  set_buffer(fd(), SO_RCVBUFFORCE, SO_RCVBUF, options.receive_buffer);
  set_buffer(fd(), SO_SNDBUFFORCE, SO_SNDBUF, options.send_buffer);
  int effective = 0;
  socklen_t size = sizeof effective;
  if (::getsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &effective, &size) != 0) {
    return fail_system(errno, "SO_RCVBUF of the UDP socket");
  }
  receive_budget_ = static_cast<std::uint64_t>(effective) / 2;
  if (set_option(fd(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO) != 0) {
    return fail_system(errno, "IP_MTU_DISCOVER of the UDP socket");
  }
  // Without these two the port works as well, only slower or without a count.
  set_option(fd(), IPPROTO_UDP, UDP_GRO, 1);
  set_option(fd(), SOL_SOCKET, SO_RXQ_OVFL, 1);
  return {};
}

Result<void> UdpSocket::bind(const UdpSocketOptions& options) {
  if (::bind(fd(), reinterpret_cast<const sockaddr*>(&local_), sizeof local_) != 0) {
    const int error = errno;
    const std::string where = fmt::format("UDP {}:{}", options.address, options.port);
    if (error == EADDRINUSE && options.port == 0) {
      return fail({Error::Code::unavailable, error,
                   where + ": no port is free; widen net.ipv4.ip_local_port_range"});
    }
    if (error == EADDRINUSE) {
      return fail({Error::Code::invalid_argument, error,
                   where + ": the port is in use; give another one, or 0 for any"});
    }
    if (error == EADDRNOTAVAIL) {
      return fail({Error::Code::unavailable, error,
                   where + ": no interface of this host has that address"});
    }
    return fail_system(error, "bind " + where);
  }
  socklen_t size = sizeof local_;
  if (::getsockname(fd(), reinterpret_cast<sockaddr*>(&local_), &size) != 0) {
    return fail_system(errno, "getsockname of the UDP socket");
  }
  return {};
}

}  // namespace tarpon
