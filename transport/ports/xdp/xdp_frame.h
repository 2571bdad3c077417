// Where a datagram lies in a frame of AF_XDP, and the headers below it.
#pragma once

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "xdp/neighbours.h"

namespace tarpon {

inline constexpr std::uint32_t kLowerHeaders =
    sizeof(ethhdr) + sizeof(iphdr) + sizeof(udphdr);  // 42 bytes
inline constexpr std::uint32_t kFrameOffset = 6;      // puts Tarpon's header at a multiple of 8

/// Ethernet, IPv4 and UDP headers to one peer.
struct LowerHeaders {
  std::array<std::byte, kLowerHeaders> bytes{};
  std::uint32_t checksum = 0;  // of the IPv4 header, without its length
};

/// Makes the headers to one peer, for any length and source port. A packet to a multicast group
/// stays in the local network (TTL 1).
LowerHeaders lower_headers(const xdp::Mac& from, const xdp::Mac& to, const sockaddr_in& source,
                           const sockaddr_in& destination);

/// The Ethernet address of an IPv4 multicast group (RFC 1112, section 6.4).
xdp::Mac group_mac(in_addr group);

/// Writes `headers` before the `datagram_bytes` (Tarpon's header and payload) of a frame. `source`:
/// the port that it is sent from, in network order.
void write_lower(std::byte* frame, const LowerHeaders& headers, std::uint16_t source,
                 std::uint32_t datagram_bytes);

}  // namespace tarpon
