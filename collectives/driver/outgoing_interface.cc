#include "collectives/driver/outgoing_interface.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "collectives/environment/interfaces.h"
#include "xdp/interface.h"
#include "xdp/neighbours.h"

namespace tarpon {
namespace {

/// Whether the kernel drops packets that arrive on the interface `name`, if its route to their
/// sender leaves by another interface (strict rp_filter).
bool drops_by_route(const std::string& name) {
  int strictest = 0;
  for (const std::string_view each : {std::string_view("all"), std::string_view(name)}) {
    int value = 0;
    std::ifstream(fmt::format("/proc/sys/net/ipv4/conf/{}/rp_filter", each)) >> value;
    strictest = std::max(strictest, value);
  }
  return strictest == 1;
}

/// How the kernel's routes to the ranks of other hosts stand to the interface.
struct Routes {
  bool remote = false;     // there are such ranks
  bool elsewhere = false;  // the best route to some of them leaves by another interface
  std::string against;     // why packets cannot all leave by this one; empty if they can
};

/// `by_kernel`: the answers to the packets come in through the kernel.
Routes look_at_routes(unsigned interface, const std::vector<RankInfo>& ranks, Rank own,
                      bool by_kernel) {
  Routes found;
  found.remote = std::any_of(ranks.begin(), ranks.end(), [&](const RankInfo& other) {
    return other.network != ranks[own].network;
  });
  if (!found.remote) return found;
  auto neighbours = xdp::Neighbours::open(interface);
  if (!neighbours) found.against = neighbours.error().message;
  for (std::size_t rank = 0; rank < ranks.size() && found.against.empty(); ++rank) {
    const RankInfo& other = ranks[rank];
    if (other.network == ranks[own].network) {
      if (other.interface == ranks[own].interface) continue;
      found.against = fmt::format("rank {} of this host has {}", rank, other.interface);
      continue;
    }
    const auto address = ipv4_address(other.address, 0);
    if (!address || !neighbours->has_route(address->sin_addr)) {
      found.against = fmt::format("it has no route to rank {} ({})", rank, other.address);
      continue;
    }
    const auto way = neighbours->way_to(address->sin_addr);
    if (!way || !way->elsewhere) continue;
    found.elsewhere = true;
    if (by_kernel && drops_by_route(ranks[own].interface)) {
      found.against = fmt::format(
          "its rp_filter would drop what rank {} answers: sysctl -w "
          "net.ipv4.conf.{}.rp_filter=2",
          rank, ranks[own].interface);
    }
  }
  return found;
}

bool send_by(Offer& offer, unsigned interface) {
  bool all = offer.socket->send_by(interface);
  for (UdpSocket& socket : offer.datapath.flows) all = socket.send_by(interface) && all;
  offer.datapath.prefers_interface = all;
  return all;
}

}  // namespace

std::string send_by_interface(Offer& offer, const std::vector<RankInfo>& ranks, Rank own) {
  const std::string& name = ranks[own].interface;
  const auto interface = xdp::interface_index(name);
  if (!interface || is_loopback_address(ranks[own].address)) return "";
  const bool by_kernel = offer.datapath.datapath != Datapath::xdp;
  Routes routes = look_at_routes(*interface, ranks, own, by_kernel);
  if (!routes.remote) return "";
  if (routes.against.empty() && !send_by(offer, *interface)) {
    routes.against = "the kernel refuses IP_UNICAST_IF";
  }
  if (!routes.against.empty()) {
    return fmt::format("packets take the kernel's routes, not {} alone: {}", name, routes.against);
  }
  if (!routes.elsewhere) return "";
  return fmt::format("packets leave by {}, not as the kernel's routes say", name);
}

}  // namespace tarpon
