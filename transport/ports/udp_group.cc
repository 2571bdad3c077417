#include "transport/ports/udp_group.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <linux/udp.h>
#include <sys/socket.h>

#include <cerrno>

#include "transport/random.h"

namespace tarpon {
namespace {

template <typename Value>
bool set(int fd, int level, int name, const Value& value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

Error refused(const char* step) {
  const int error = errno;
  Error result = Error::system(error, fmt::format("cannot join a multicast group: {}", step));
  if (error == EADDRINUSE || error == ENODEV || error == EADDRNOTAVAIL || error == ENOBUFS) {
    result.code = Error::Code::unavailable;
  }
  return result;
}

}  // namespace

sockaddr_in group_address(std::uint32_t id, std::uint16_t port) {
  // The second byte is not 0 or 128: switches flood the Ethernet addresses of 239.0.0.x and
  // 239.128.0.x, as they are those of 224.0.0.x.
  const std::uint64_t drawn = Random(id).next();
  const auto second = static_cast<std::uint32_t>(1 + drawn % 127);
  const auto rest = static_cast<std::uint32_t>(drawn >> 32 & 0xffff);
  sockaddr_in group{};
  group.sin_family = AF_INET;
  group.sin_port = htons(port);
  group.sin_addr.s_addr = htonl(239u << 24 | second << 16 | rest);
  return group;
}

Result<UdpGroup> join_group(const UdpSocket& sender, const sockaddr_in& group, std::uint32_t job,
                            std::size_t receive_buffer) {
  UdpGroup result;
  result.address = group;
  result.socket = FileDescriptor(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = result.socket.get();
  if (fd < 0) return fail(refused("socket"));
  set_receive_buffer(fd, receive_buffer);
  set(fd, IPPROTO_UDP, UDP_GRO, 1);  // without it the port works as well, only slower
  if (!set(fd, SOL_SOCKET, SO_REUSEADDR, 1)) return fail(refused("SO_REUSEADDR"));
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&group), sizeof group) != 0) {
    return fail(refused("bind to the group"));
  }
  accept_only(fd, job);
  result.interface = sender.local().sin_addr;
  const ip_mreq member{.imr_multiaddr = group.sin_addr, .imr_interface = result.interface};
  if (!set(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, member)) return fail(refused("IP_ADD_MEMBERSHIP"));
  if (!set(sender.fd(), IPPROTO_IP, IP_MULTICAST_IF, sender.local().sin_addr)) {
    return fail(refused("IP_MULTICAST_IF"));
  }
  if (!set(sender.fd(), IPPROTO_IP, IP_MULTICAST_LOOP, 0))
    return fail(refused("IP_MULTICAST_LOOP"));
  return result;
}

void UdpGroup::leave() const {
  const ip_mreq member{.imr_multiaddr = address.sin_addr, .imr_interface = interface};
  set(socket.get(), IPPROTO_IP, IP_DROP_MEMBERSHIP, member);
}

}  // namespace tarpon
