// Opening and configuring the UDP socket.
#include "transport/ports/udp_socket.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <linux/filter.h>
#include <linux/sock_diag.h>
#include <linux/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <iterator>
#include <span>

#include "bpf/wire.h"

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

// Answers of the program that chooses between the two sockets of a port: they are numbered in the
// order in which they were bound.
constexpr std::uint32_t kToFirst = 0;
constexpr std::uint32_t kToRefuser = 1;

int attach(int fd, int option, std::span<sock_filter> code) {
  const sock_fprog program{.len = static_cast<unsigned short>(code.size()), .filter = code.data()};
  return ::setsockopt(fd, SOL_SOCKET, option, &program, sizeof program);
}

int drop_everything(int fd) {
  sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  return attach(fd, SO_ATTACH_FILTER, code);
}

/// A program that answers `yes` for a datagram of the job, else `no`. Loads are big-endian and
/// start `skipped` bytes before Tarpon's header; the wire is little-endian. A load beyond the end
/// would answer 0, so the length is checked first.
std::array<sock_filter, 10> job_filter(std::uint32_t job, std::uint32_t skipped, std::uint32_t yes,
                                       std::uint32_t no) {
  constexpr std::uint32_t kMagic = __builtin_bswap16(TARPON_MAGIC);
  const auto at = [skipped](std::size_t offset) {
    return skipped + static_cast<std::uint32_t>(offset);
  };
  return {{
      BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, skipped + TARPON_HEADER_BYTES, 0, 7),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, at(offsetof(tarpon_header, magic))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kMagic, 0, 5),
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, at(offsetof(tarpon_header, version))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TARPON_WIRE_VERSION, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at(offsetof(tarpon_header, job))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __builtin_bswap32(job), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, yes),
      BPF_STMT(BPF_RET | BPF_K, no),
  }};
}

}  // namespace

void set_receive_buffer(int fd, std::size_t bytes) {
  set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, bytes);
}

void accept_only(int fd, std::uint32_t job) {
  constexpr std::uint32_t kUdpHeader = 8;  // a socket filter sees it
  constexpr std::uint32_t kWhole = 0xffffffff;
  auto code = job_filter(job, kUdpHeader, kWhole, 0);
  attach(fd, SO_ATTACH_FILTER, code);
}

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
  result.send_only_ = options.send_only;
  result.fd_ = FileDescriptor(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (result.fd() < 0) return fail_system(errno, "UDP socket");
  if (auto done = result.configure(options); !done) return fail(done.error());
  if (auto done = result.bind(options); !done) return fail(done.error());
  if (!options.send_only) result.share_port();
  return result;
}

Result<void> UdpSocket::configure(const UdpSocketOptions& options) {
  set_receive_buffer(fd(), options.receive_buffer);
  set_buffer(fd(), SO_SNDBUFFORCE, SO_SNDBUF, options.send_buffer);
  int effective = 0;
  socklen_t size = sizeof effective;
  if (::getsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &effective, &size) != 0) {
    return fail_system(errno, "SO_RCVBUF of the UDP socket");
  }
  receive_budget_ = static_cast<std::uint64_t>(effective) / 2;
  if (set_option(fd(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE) != 0) {
    return fail_system(errno, "IP_MTU_DISCOVER of the UDP socket");
  }
  // Without these two the port works as well, only slower or without a count.
  set_option(fd(), IPPROTO_UDP, UDP_GRO, 1);
  set_option(fd(), SOL_SOCKET, SO_RXQ_OVFL, 1);
  if (options.send_only && drop_everything(fd()) != 0) {
    return fail_system(errno, "SO_ATTACH_FILTER of the UDP socket");
  }
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

// No peer knows the port yet, so no datagram is lost between the two steps. If a step fails, the
// first socket goes on alone.
void UdpSocket::share_port() {
  FileDescriptor refuser(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sock_filter all_to_first[] = {BPF_STMT(BPF_RET | BPF_K, kToFirst)};
  // The kernel may ask either socket whether to merge datagrams: both say yes.
  set_option(refuser.get(), IPPROTO_UDP, UDP_GRO, 1);
  const bool shared =
      refuser && drop_everything(refuser.get()) == 0 &&
      set_option(fd(), SOL_SOCKET, SO_REUSEPORT, 1) == 0 &&
      set_option(refuser.get(), SOL_SOCKET, SO_REUSEPORT, 1) == 0 &&
      ::bind(refuser.get(), reinterpret_cast<const sockaddr*>(&local_), sizeof local_) == 0 &&
      attach(fd(), SO_ATTACH_REUSEPORT_CBPF, all_to_first) == 0;
  if (shared) refuser_ = std::move(refuser);
}

bool UdpSocket::send_by(unsigned interface) {
  return set_option(fd(), IPPROTO_IP, IP_UNICAST_IF, static_cast<int>(htonl(interface))) == 0;
}

void UdpSocket::refuse_strangers(std::uint32_t job) {
  if (!refuser_) return;
  auto code = job_filter(job, 0, kToFirst, kToRefuser);  // behind the UDP header
  attach(fd(), SO_ATTACH_REUSEPORT_CBPF, code);
}

std::uint32_t UdpSocket::refused() const {
  if (!refuser_ && !send_only_) return 0;  // what the socket drops are overruns
  const int fd = refuser_ ? refuser_.get() : fd_.get();
  std::array<std::uint32_t, SK_MEMINFO_VARS> memory{};
  socklen_t size = sizeof memory;
  if (::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory.data(), &size) != 0) return 0;
  return memory[SK_MEMINFO_DROPS];
}

}  // namespace tarpon
