#include "transport/ports/xdp/xdp_frame.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace tarpon {
namespace {

std::uint16_t fold(std::uint32_t sum) {
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

}  // namespace

LowerHeaders lower_headers(const xdp::Mac& from, const xdp::Mac& to, const sockaddr_in& source,
                           const sockaddr_in& destination) {
  ethhdr ethernet{};
  std::copy(to.begin(), to.end(), ethernet.h_dest);
  std::copy(from.begin(), from.end(), ethernet.h_source);
  ethernet.h_proto = htons(ETH_P_IP);
  iphdr ip{};
  ip.version = 4;
  ip.ihl = 5;
  ip.frag_off = htons(0x4000);  // never fragment
  ip.ttl = IN_MULTICAST(ntohl(destination.sin_addr.s_addr)) ? 1 : 64;
  ip.protocol = IPPROTO_UDP;
  ip.saddr = source.sin_addr.s_addr;
  ip.daddr = destination.sin_addr.s_addr;
  udphdr udp{};
  udp.source = source.sin_port;
  udp.dest = destination.sin_port;
  LowerHeaders result;
  std::byte* at = result.bytes.data();
  const auto put = [&at](const auto& part) {
    std::memcpy(at, &part, sizeof part);
    at += sizeof part;
  };
  put(ethernet);
  put(ip);
  put(udp);
  std::array<std::uint16_t, sizeof ip / 2> words{};
  std::memcpy(words.data(), &ip, sizeof ip);
  for (const std::uint16_t word : words) result.checksum += word;
  return result;
}

xdp::Mac group_mac(in_addr group) {
  const std::uint32_t address = ntohl(group.s_addr);
  return {0x01,
          0x00,
          0x5e,
          static_cast<std::uint8_t>(address >> 16 & 0x7f),
          static_cast<std::uint8_t>(address >> 8),
          static_cast<std::uint8_t>(address)};
}

void write_lower(std::byte* frame, const LowerHeaders& headers, std::uint16_t source,
                 std::uint32_t datagram_bytes) {
  std::memcpy(frame, headers.bytes.data(), headers.bytes.size());
  const auto put = [frame](std::size_t at, std::uint16_t value) {
    std::memcpy(frame + at, &value, sizeof value);
  };
  const std::uint16_t total =
      htons(static_cast<std::uint16_t>(sizeof(iphdr) + sizeof(udphdr) + datagram_bytes));
  put(sizeof(ethhdr) + offsetof(iphdr, tot_len), total);
  put(sizeof(ethhdr) + offsetof(iphdr, check), fold(headers.checksum + total));
  put(sizeof(ethhdr) + sizeof(iphdr) + offsetof(udphdr, source), source);
  put(sizeof(ethhdr) + sizeof(iphdr) + offsetof(udphdr, len),
      htons(static_cast<std::uint16_t>(sizeof(udphdr) + datagram_bytes)));
}

}  // namespace tarpon
