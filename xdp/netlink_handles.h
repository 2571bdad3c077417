// Owning pointers to libnl's objects.
#pragma once

#include <netlink/addr.h>
#include <netlink/cache.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/route/link.h>
#include <netlink/route/neighbour.h>
#include <netlink/route/route.h>

#include <memory>

namespace tarpon::xdp {

template <auto Release>
struct NetlinkReleaser {
  template <typename Object>
  void operator()(Object* object) const {
    Release(object);
  }
};
using NetlinkSocket = std::unique_ptr<nl_sock, NetlinkReleaser<nl_socket_free>>;
using NetlinkMessage = std::unique_ptr<nl_msg, NetlinkReleaser<nlmsg_free>>;
using NetlinkAddress = std::unique_ptr<nl_addr, NetlinkReleaser<nl_addr_put>>;
using NetlinkCache = std::unique_ptr<nl_cache, NetlinkReleaser<nl_cache_free>>;
using NetlinkLink = std::unique_ptr<rtnl_link, NetlinkReleaser<rtnl_link_put>>;
using NetlinkRoute = std::unique_ptr<rtnl_route, NetlinkReleaser<rtnl_route_put>>;
using NetlinkNeighbour = std::unique_ptr<rtnl_neigh, NetlinkReleaser<rtnl_neigh_put>>;

}  // namespace tarpon::xdp
