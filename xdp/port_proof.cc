// glibc's <netinet/in.h> does not go after the kernel's <linux/in.h>.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <memory>

#include "xdp/attached.h"
#include "xdp/port_proof.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace tarpon::xdp {
namespace {

int option_of(int socket, int option) {
  int value = -1;
  socklen_t length = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, option, &value, &length) == 0 ? value : -1;
}

/// IP_FREEBIND binds a socket to an address that this host does not have.
bool has_address(const std::string& interface, in_addr address) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    const auto* const held = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    if (interface == each->ifa_name && held->sin_addr.s_addr == address.s_addr) return true;
  }
  return false;
}

tl::unexpected<Error> refuse(std::string why) {
  return fail(Error::Code::invalid_argument, std::move(why));
}

}  // namespace

std::uint64_t network_of(int socket) {
  std::uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  return ::getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

Result<tarpon_port_key> prove_port(int socket, uid_t user, const PortPlace& place) {
  if (option_of(socket, SO_DOMAIN) != AF_INET || option_of(socket, SO_TYPE) != SOCK_DGRAM ||
      option_of(socket, SO_PROTOCOL) != IPPROTO_UDP) {
    return refuse("the descriptor is not an IPv4 UDP socket");
  }
  if (network_of(socket) != place.network) {
    return refuse("the UDP socket is of another network namespace");
  }
  struct stat made {};
  if (::fstat(socket, &made) != 0) return fail_system(errno, "the owner of the UDP socket");
  if (user != 0 && made.st_uid != user) {
    return refuse(fmt::format("the UDP socket is of user {}, not of user {}", made.st_uid, user));
  }
  sockaddr_in local{};
  socklen_t length = sizeof local;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    return fail_system(errno, "the port of the UDP socket");
  }
  if (local.sin_port == 0) return refuse("the UDP socket is not bound to a port");
  const std::string interface = interface_text(place.interface);
  if (!has_address(interface, local.sin_addr)) {
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &local.sin_addr, text.data(), text.size());
    return refuse(fmt::format("{} is not an address of {}", text.data(), interface));
  }
  return tarpon_port_key{local.sin_addr.s_addr, local.sin_port, 0};
}

}  // namespace tarpon::xdp
