// Frames for tests of the XDP program and the parser that it shares with user space.
#pragma once

#include <arpa/inet.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "bpf/packet.h"

namespace tarpon::testing_support {

inline constexpr std::uint32_t kFrameAddress = 0x0a090909;  // 10.9.9.9
inline constexpr std::uint16_t kFramePort = 7000;
inline constexpr std::uint32_t kFrameJob = 5;

/// A well-formed DATA packet to 10.9.9.9:7000 of job 5, from rank 0; `at` as in the wire's order.
struct Frame {
  ethhdr ethernet{};
  iphdr ip{};
  udphdr udp{};
  tarpon_header header{};

  explicit Frame(std::uint32_t payload_bytes = 0) {
    std::memset(ethernet.h_dest, 0xff, sizeof ethernet.h_dest);
    ethernet.h_proto = htons(ETH_P_IP);
    ip.version = 4;
    ip.ihl = 5;
    ip.ttl = 64;
    ip.protocol = IPPROTO_UDP;
    ip.tot_len = htons(static_cast<std::uint16_t>(28 + TARPON_HEADER_BYTES + payload_bytes));
    ip.daddr = htonl(kFrameAddress);
    udp.dest = htons(kFramePort);
    udp.len = htons(static_cast<std::uint16_t>(8 + TARPON_HEADER_BYTES + payload_bytes));
    header.magic = TARPON_MAGIC;
    header.version = TARPON_WIRE_VERSION;
    header.type = TARPON_DATA;
    header.job = kFrameJob;
    header.length = static_cast<std::uint16_t>(payload_bytes);
  }

  /// The bytes on the wire, payload bytes all `fill`.
  std::vector<std::byte> bytes(std::uint8_t fill = 0) const {
    std::vector<std::byte> result(TARPON_FRAME_HEADER_BYTES + header.length, std::byte{fill});
    std::byte* at = result.data();
    const auto put = [&at](const auto& part) {
      std::memcpy(at, &part, sizeof part);
      at += sizeof part;
    };
    put(ethernet);
    put(ip);
    put(udp);
    put(header);
    return result;
  }
};

}  // namespace tarpon::testing_support
