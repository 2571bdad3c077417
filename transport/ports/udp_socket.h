// The UDP socket under the mmsg and io_uring ports.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "xdp/file_descriptor.h"
#include "xdp/result.h"

namespace tarpon {

struct UdpSocketOptions {
  std::string address = "127.0.0.1";  // local IPv4 address, dotted; 0.0.0.0 takes all
  std::uint16_t port = 0;             // 0: any free one
  /// Kernel buffers in bytes. Without CAP_NET_ADMIN the kernel silently cuts them to
  /// net.core.rmem_max and wmem_max: receive_budget() tells what came of it.
  std::size_t receive_buffer = std::size_t{16} << 20;
  std::size_t send_buffer = std::size_t{16} << 20;
};

/// A bound, unconnected, non-blocking IPv4 UDP socket: never fragments (IP_MTU_DISCOVER = DO),
/// takes GRO trains where the kernel can (UDP_GRO) and reports its overruns (SO_RXQ_OVFL).
/// Move-only.
class UdpSocket {
 public:
  /// Errors: invalid_argument (not an IPv4 address, port in use), unavailable (no such local
  /// address), permission, io.
  static Result<UdpSocket> open(const UdpSocketOptions& options);

  int fd() const { return fd_.get(); }
  std::uint16_t port() const { return ntohs(local_.sin_port); }
  const sockaddr_in& local() const { return local_; }

  /// Datagram bytes that the receive buffer surely holds: half of its size, as the kernel charges
  /// each datagram with its own bookkeeping too.
  std::uint64_t receive_budget() const { return receive_budget_; }

 private:
  UdpSocket() = default;
  Result<void> configure(const UdpSocketOptions& options);
  Result<void> bind(const UdpSocketOptions& options);

  FileDescriptor fd_;
  sockaddr_in local_{};
  std::uint64_t receive_budget_ = 0;
};

/// "ADDRESS" (dotted IPv4) and port as a socket address. Errors: invalid_argument.
Result<sockaddr_in> ipv4_address(const std::string& address, std::uint16_t port);

/// Whether the socket can never work again after this errno; everything else concerns one datagram.
bool fatal_socket_error(int error);

}  // namespace tarpon
