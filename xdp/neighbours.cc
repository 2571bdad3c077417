#include "xdp/neighbours.h"

#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netlink/attr.h>
#include <netlink/cache.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/route/link.h>
#include <netlink/route/neighbour.h>
#include <netlink/route/nexthop.h>
#include <netlink/route/route.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "xdp/base/file_descriptor.h"
#include "xdp/netlink_handles.h"

namespace tarpon::xdp {
namespace {

Error netlink_error(int code, const std::string& what) {
  const auto kind = code == -NLE_PERM ? Error::Code::permission : Error::Code::io;
  return Error::make(kind, what + ": " + nl_geterror(code));
}

Result<NetlinkSocket> open_socket() {
  NetlinkSocket socket(nl_socket_alloc());
  if (socket == nullptr) return fail(Error::Code::io, "netlink: out of memory");
  if (const int code = nl_connect(socket.get(), NETLINK_ROUTE); code != 0) {
    return fail(netlink_error(code, "netlink socket"));
  }
  return socket;
}

NetlinkAddress address_of(in_addr host) {
  return NetlinkAddress(nl_addr_build(AF_INET, &host, sizeof host));
}

}  // namespace

struct Neighbours::State {
  unsigned interface = 0;
  bool prefers_it = false;
  bool may_ask = true;  // CAP_NET_ADMIN, as far as is known
  NetlinkSocket requests;
  NetlinkSocket lookups;  // without acknowledgements
  NetlinkSocket news;
  NetlinkCache known;  // neighbours; may be empty

  Result<NetlinkRoute> route(in_addr host) {
    const NetlinkAddress to = address_of(host);
    rtnl_route* found = nullptr;
    if (const int code = rtnl_route_lookup(requests.get(), to.get(), &found); code != 0) {
      return fail(Error::Code::unavailable, std::string("no route: ") + nl_geterror(code));
    }
    return NetlinkRoute(found);
  }

  /// The best route over the interface; null if there is none.
  NetlinkRoute route_over_interface(in_addr host) {
    rtmsg about{};
    about.rtm_family = AF_INET;
    about.rtm_dst_len = 32;
    about.rtm_flags = RTM_F_FIB_MATCH;  // else the kernel makes up a route where it has none
    const NetlinkMessage message(nlmsg_alloc_simple(RTM_GETROUTE, 0));
    if (message == nullptr ||
        nlmsg_append(message.get(), &about, sizeof about, NLMSG_ALIGNTO) != 0 ||
        nla_put(message.get(), RTA_DST, sizeof host, &host) != 0 ||
        nla_put_u32(message.get(), RTA_OIF, interface) != 0 ||
        nl_send_auto(lookups.get(), message.get()) < 0) {
      return nullptr;
    }
    sockaddr_nl from{};
    unsigned char* answer = nullptr;
    const int bytes = nl_recv(lookups.get(), &from, &answer, nullptr);
    const std::unique_ptr<unsigned char, decltype(&std::free)> owner(answer, &std::free);
    auto* const header = reinterpret_cast<nlmsghdr*>(answer);
    rtnl_route* found = nullptr;
    if (bytes <= 0 || !nlmsg_ok(header, bytes) || header->nlmsg_type != RTM_NEWROUTE ||
        rtnl_route_parse(header, &found) != 0) {
      return nullptr;
    }
    return NetlinkRoute(found);
  }

  /// The hop of `route` that leaves by the interface; null if there is none.
  rtnl_nexthop* hop_of(rtnl_route* route) const {
    if (rtnl_route_get_type(route) == RTN_LOCAL) return nullptr;
    for (int i = 0; i < rtnl_route_get_nnexthops(route); ++i) {
      rtnl_nexthop* const hop = rtnl_route_nexthop_n(route, i);
      if (rtnl_route_nh_get_ifindex(hop) == static_cast<int>(interface)) return hop;
    }
    return nullptr;
  }

  /// Makes the kernel resolve the next hop to `host` by an empty datagram to the port "discard",
  /// which goes no further than that hop.
  void knock(in_addr host) const {
    const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int index = static_cast<int>(htonl(interface));
    const int hops = 1;
    ::setsockopt(socket.get(), IPPROTO_IP, IP_UNICAST_IF, &index, sizeof index);
    ::setsockopt(socket.get(), IPPROTO_IP, IP_TTL, &hops, sizeof hops);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr = host;
    to.sin_port = htons(9);
    ::sendto(socket.get(), nullptr, 0, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }

  std::optional<Mac> mac_of(nl_addr* next) const {
    if (known == nullptr) return std::nullopt;
    const NetlinkNeighbour found(rtnl_neigh_get(known.get(), static_cast<int>(interface), next));
    if (found == nullptr) return std::nullopt;
    const int usable =
        NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;
    nl_addr* const mac = rtnl_neigh_get_lladdr(found.get());
    Mac result{};
    if ((rtnl_neigh_get_state(found.get()) & usable) == 0 || mac == nullptr ||
        nl_addr_get_len(mac) != result.size()) {
      return std::nullopt;
    }
    std::memcpy(result.data(), nl_addr_get_binary_addr(mac), result.size());
    return result;
  }
};

Neighbours::Neighbours(std::unique_ptr<State> state) : state_(std::move(state)) {}
Neighbours::Neighbours(Neighbours&&) noexcept = default;
Neighbours& Neighbours::operator=(Neighbours&&) noexcept = default;
Neighbours::~Neighbours() = default;

Result<Neighbours> Neighbours::open(unsigned interface, bool prefers_it) {
  auto state = std::make_unique<State>();
  state->interface = interface;
  state->prefers_it = prefers_it;
  auto requests = open_socket();
  if (!requests) return fail(requests.error());
  auto lookups = open_socket();
  if (!lookups) return fail(lookups.error());
  nl_socket_disable_auto_ack(lookups->get());
  state->lookups = std::move(*lookups);
  auto news = open_socket();
  if (!news) return fail(news.error());
  state->requests = std::move(*requests);
  state->news = std::move(*news);
  nl_socket_disable_seq_check(state->news.get());
  nl_socket_set_nonblocking(state->news.get());
  const int code = nl_socket_add_memberships(state->news.get(), RTNLGRP_LINK, RTNLGRP_NEIGH,
                                             RTNLGRP_IPV4_ROUTE, RTNLGRP_NONE);
  if (code != 0) return fail(netlink_error(code, "following links, neighbours and routes"));
  return Neighbours(std::move(state));
}

Result<Link> Neighbours::link() {
  rtnl_link* found = nullptr;
  const int index = static_cast<int>(state_->interface);
  if (const int code = rtnl_link_get_kernel(state_->requests.get(), index, nullptr, &found);
      code != 0) {
    Error error = netlink_error(code, "interface " + std::to_string(index));
    if (code == -NLE_NODEV || code == -NLE_OBJ_NOTFOUND) error.code = Error::Code::unavailable;
    return fail(std::move(error));
  }
  const NetlinkLink link(found);
  Link result;
  const nl_addr* mac = rtnl_link_get_addr(link.get());
  if (mac == nullptr || nl_addr_get_len(mac) != result.mac.size()) {
    return fail(Error::Code::unavailable,
                "interface " + std::to_string(index) + " is not Ethernet");
  }
  std::memcpy(result.mac.data(), nl_addr_get_binary_addr(mac), result.mac.size());
  result.mtu = rtnl_link_get_mtu(link.get());
  result.up = (rtnl_link_get_flags(link.get()) & IFF_UP) != 0;
  result.carrier = rtnl_link_get_carrier(link.get()) != 0;
  return result;
}

Result<void> Neighbours::read() {
  nl_cache* made = nullptr;
  if (const int code = nl_cache_alloc_name("route/neigh", &made); code != 0) {
    return fail(netlink_error(code, "neighbours"));
  }
  NetlinkCache cache(made);
  // Only the neighbours on this interface: a host may have many more.
  const NetlinkMessage message(nlmsg_alloc_simple(RTM_GETNEIGH, NLM_F_DUMP));
  ndmsg about{};
  about.ndm_family = AF_INET;
  if (message == nullptr || nlmsg_append(message.get(), &about, sizeof about, NLMSG_ALIGNTO) != 0 ||
      nla_put_u32(message.get(), NDA_IFINDEX, state_->interface) != 0) {
    return fail(Error::Code::io, "netlink: out of memory");
  }
  int code = nl_send_auto(state_->requests.get(), message.get());
  if (code >= 0) code = nl_cache_pickup(state_->requests.get(), cache.get());
  if (code < 0) return fail(netlink_error(code, "neighbours"));
  state_->known = std::move(cache);
  return {};
}

Result<Way> Neighbours::way_to(in_addr host) {
  auto route = state_->route(host);
  if (!route) return fail(route.error());
  const int index = static_cast<int>(state_->interface);
  const bool local = rtnl_route_get_type(route->get()) == RTN_LOCAL;
  rtnl_nexthop* hop = state_->hop_of(route->get());
  if (hop == nullptr && !local && state_->prefers_it) {
    if (NetlinkRoute over = state_->route_over_interface(host)) {
      *route = std::move(over);
      hop = state_->hop_of(route->get());
    }
  }
  if (hop == nullptr) return Way{.elsewhere = true, .mac = {}};
  nl_addr* next = rtnl_route_nh_get_gateway(hop);
  NetlinkAddress own;
  if (next == nullptr) {
    own = address_of(host);
    next = own.get();
  }
  if (auto mac = state_->mac_of(next)) return Way{.elsewhere = false, .mac = mac};
  // NTF_USE: the kernel resolves the address as if a packet had to go there.
  if (!state_->may_ask) {
    state_->knock(host);
    return Way{};
  }
  const NetlinkNeighbour wanted(rtnl_neigh_alloc());
  rtnl_neigh_set_ifindex(wanted.get(), index);
  rtnl_neigh_set_family(wanted.get(), AF_INET);
  rtnl_neigh_set_dst(wanted.get(), next);
  rtnl_neigh_set_flags(wanted.get(), NTF_USE);
  rtnl_neigh_set_state(wanted.get(), NUD_NONE);
  if (const int code = rtnl_neigh_add(state_->requests.get(), wanted.get(), NLM_F_CREATE);
      code != 0) {
    if (code != -NLE_PERM) return fail(netlink_error(code, "asking for a neighbour"));
    state_->may_ask = false;
    state_->knock(host);
  }
  return Way{};
}

bool Neighbours::has_route(in_addr host) {
  const NetlinkRoute route = state_->route_over_interface(host);
  return route != nullptr && state_->hop_of(route.get()) != nullptr;
}

int Neighbours::fd() const {
  return nl_socket_get_fd(state_->news.get());
}

bool Neighbours::changed() {
  bool any = false;
  std::array<char, 8192> scratch;
  while (::recv(fd(), scratch.data(), scratch.size(), MSG_DONTWAIT) > 0) any = true;
  return any;
}

}  // namespace tarpon::xdp
