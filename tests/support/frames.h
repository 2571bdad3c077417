// Frames for tests of the XDP program and the parser that it shares with user space.
#pragma once

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bpf/packet.h"

namespace tarpon::testing_support {

inline constexpr std::uint32_t kFrameAddress = 0x0a090909;  // 10.9.9.9
inline constexpr std::uint16_t kFramePort = 7000;
inline constexpr std::uint32_t kFrameJob = 5;
alignas(2) inline constexpr std::array<std::uint8_t, ETH_ALEN> kFrameMac = {2, 0, 0, 0, 0, 5};

/// What the program is told of the port that frames are for.
inline tarpon_port_entry frame_entry(std::uint64_t queues = 1, std::uint32_t index = 0) {
  tarpon_port_entry entry{};
  entry.queues = queues;
  entry.job = kFrameJob;
  entry.index = index;
  std::copy(kFrameMac.begin(), kFrameMac.end(), entry.mac);
  return entry;
}

/// Makes the checksum of the IPv4 header in the frame at `frame` right.
inline void set_checksum(std::byte* frame) {
  std::byte* const ip = frame + sizeof(ethhdr);
  std::memset(ip + offsetof(iphdr, check), 0, sizeof(iphdr::check));
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < sizeof(iphdr); at += 2) {
    std::uint16_t word = 0;
    std::memcpy(&word, ip + at, sizeof word);
    sum += word;
  }
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  const auto check = static_cast<std::uint16_t>(~sum);
  std::memcpy(ip + offsetof(iphdr, check), &check, sizeof check);
}

/// A well-formed DATA packet to 10.9.9.9:7000 of job 5, from rank 0.
struct Frame {
  ethhdr ethernet{};
  iphdr ip{};
  udphdr udp{};
  tarpon_header header{};
  std::uint16_t checksum_error = 0;  // added to the checksum of the IPv4 header

  explicit Frame(std::uint32_t payload_bytes = 0) {
    std::copy(kFrameMac.begin(), kFrameMac.end(), ethernet.h_dest);
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
    set_checksum(result.data());
    std::uint16_t check = 0;
    std::byte* const field = result.data() + sizeof ethernet + offsetof(iphdr, check);
    std::memcpy(&check, field, sizeof check);
    check = static_cast<std::uint16_t>(check + checksum_error);
    std::memcpy(field, &check, sizeof check);
    return result;
  }
};

}  // namespace tarpon::testing_support
