// The UDP socket under the mmsg and io_uring ports, and what keeps strangers out of its buffer.
//
// DESIGN NOTES
// 1. No ICMP message may stop or slow the socket, since anybody can forge one. IP_PMTUDISC_PROBE
//    sets DF and goes by the interface's MTU alone; with IP_PMTUDISC_DO a "fragmentation needed"
//    would lower the kernel's MTU of the path for ten minutes, for every socket. The other ICMP
//    errors do not reach a socket that is not connected.
// 2. Datagrams that do not carry the job's cookie are refused before they fill the receive buffer.
//    A socket filter (SO_ATTACH_FILTER) would do that too, but the kernel counts what a filter
//    drops and what a full buffer drops in one number. Therefore a second socket shares the port
//    (SO_REUSEPORT), and a classic BPF program, which needs no privilege, sends to it what is not
//    the job's. That socket drops everything, and its count is the number of refused datagrams.
//    The first socket is bound alone: otherwise the kernel might give it a port that another
//    socket of the same user shares.
// 3. send_by() sets IP_UNICAST_IF, not SO_BINDTODEVICE. A socket that is bound to a device gets no
//    packet from ranks of this host, which come over loopback. It also gets none that arrive on
//    another interface, and where two interfaces are in one subnet, the peer's ARP may choose
//    either.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon {

struct UdpSocketOptions {
  std::string address = "127.0.0.1";  // local IPv4 address, dotted; 0.0.0.0 takes all
  std::uint16_t port = 0;             // 0: any free one
  /// Kernel buffers in bytes. Without CAP_NET_ADMIN the kernel silently cuts them to
  /// net.core.rmem_max and wmem_max: receive_budget() tells the result.
  std::size_t receive_buffer = std::size_t{16} << 20;
  std::size_t send_buffer = std::size_t{16} << 20;
  /// Whether the kernel refuses everything that arrives.
  bool send_only = false;
};

/// A bound, unconnected, non-blocking IPv4 UDP socket: never fragments and ignores the MTU that
/// ICMP messages claim (IP_PMTUDISC_PROBE), takes GRO trains where the kernel can (UDP_GRO) and
/// reports its overruns (SO_RXQ_OVFL). Move-only. One thread at a time.
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

  /// Makes datagrams to other hosts leave by `interface` (its index), whichever interface the
  /// kernel's routes would choose. Those to an address of this host stay here only if `interface`
  /// has the address. False: the kernel refuses.
  bool send_by(unsigned interface);

  /// Makes the kernel refuse every datagram that is shorter than a header or lacks the magic, the
  /// version or the cookie `job`. Only the first header of a GRO train is looked at. If the kernel
  /// cannot do that, nothing changes: the endpoint checks every packet anyway.
  void refuse_strangers(std::uint32_t job);

  /// Datagrams refused so far, modulo 2^32; a GRO train counts once. One system call.
  std::uint32_t refused() const;

 private:
  UdpSocket() = default;
  Result<void> configure(const UdpSocketOptions& options);
  Result<void> bind(const UdpSocketOptions& options);
  void share_port();

  PrivateDescriptor fd_;
  PrivateDescriptor refuser_;  // takes what is refused; may be empty
  bool send_only_ = false;
  sockaddr_in local_{};
  std::uint64_t receive_budget_ = 0;
};

/// Gives `fd` a receive buffer of `bytes`, or of what net.core.rmem_max allows.
void set_receive_buffer(int fd, std::size_t bytes);

/// Makes the kernel drop every datagram to `fd` that lacks the cookie `job`, as
/// UdpSocket::refuse_strangers(); it counts them as overruns. If it cannot, nothing changes.
void accept_only(int fd, std::uint32_t job);

/// "ADDRESS" (dotted IPv4) and port as a socket address. Errors: invalid_argument.
Result<sockaddr_in> ipv4_address(const std::string& address, std::uint16_t port);

/// Whether the socket can never work again after this errno; everything else concerns one datagram.
bool fatal_socket_error(int error);

}  // namespace tarpon
