// What a port uses beside the UDP socket that it receives on: sockets to send from, and a multicast
// group.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/port.h"
#include "transport/ports/udp_group.h"
#include "transport/ports/udp_socket.h"
#include "xdp/base/result.h"

namespace tarpon {

/// An address that packets of `rank` come from.
struct FlowSource {
  sockaddr_in address{};
  Rank rank = kUnknownRank;
};

/// The default: one flow, no group.
struct UdpFlows {
  std::vector<UdpSocket> sockets;   // to send from, beside the first one: flows 1, 2, ...
  std::vector<FlowSource> sources;  // of all ranks, beside the addresses where they receive
  std::optional<UdpGroup> group = std::nullopt;  // of all ranks
};

/// Opens sockets for `flows` - 1 more flows from `address`, each by `open`, which may choose its
/// port. They only send: the kernel refuses and counts what comes to them. Errors: those of `open`;
/// they name the flow that failed.
Result<std::vector<UdpSocket>> open_flows(
    const std::string& address, std::uint32_t flows,
    const std::function<Result<UdpSocket>(const UdpSocketOptions&)>& open = UdpSocket::open);

/// The descriptor to send flow `flow` from. REQUIRES: flow <= sockets.size().
inline int flow_descriptor(const UdpSocket& first, std::span<const UdpSocket> sockets,
                           std::uint32_t flow) {
  return flow == 0 ? first.fd() : sockets[flow - 1].fd();
}

}  // namespace tarpon
