// The classes, and what makes frames of them.
#include "tests/hostile/hostile_frames.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/ip_icmp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "transport/clock.h"
#include "transport/integrity.h"

namespace tarpon::hostile {
namespace {

constexpr std::size_t kPayload = 128;
constexpr std::uint32_t kFarAhead = 1u << 30;

using Frame = HostileFrame;

std::uint8_t byte_of(std::uint64_t value) {
  return static_cast<std::uint8_t>(value);
}

/// Names another integrity than the job's.
void set_integrity(Frame& frame, unsigned integrity) {
  frame.header.flags = byte_of((frame.header.flags & ~unsigned{TARPON_INTEGRITY_MASK}) |
                               integrity << TARPON_INTEGRITY_SHIFT);
}

std::uint16_t internet_checksum(std::span<const std::byte> bytes) {
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at + 1 < bytes.size(); at += 2) {
    std::uint16_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    sum += word;
  }
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

template <typename Part>
void append(std::vector<std::byte>& bytes, const Part& part) {
  const auto* const from = reinterpret_cast<const std::byte*>(&part);
  bytes.insert(bytes.end(), from, from + sizeof part);
}

struct IcmpKind {
  std::uint8_t type;
  std::uint8_t code;
};

/// An ICMP error about a full packet of the attacked rank to the one in whose name this is sent.
void set_icmp(Frame& frame, const Target& target, IcmpKind kind, std::uint64_t mtu) {
  icmphdr icmp{};
  icmp.type = kind.type;
  icmp.code = kind.code;
  icmp.un.frag.mtu = htons(static_cast<std::uint16_t>(mtu));
  iphdr ip = frame.ip;
  ip.saddr = target.address.sin_addr.s_addr;
  ip.daddr = target.spoofed.sin_addr.s_addr;
  ip.tot_len = htons(1500);
  ip.frag_off = htons(0x4000);
  udphdr udp{};
  udp.source = target.address.sin_port;
  udp.dest = target.spoofed.sin_port;
  udp.len = htons(1480);
  append(frame.instead, icmp);
  append(frame.instead, ip);
  append(frame.instead, udp);
  const std::uint16_t check = internet_checksum(frame.instead);
  std::memcpy(frame.instead.data() + offsetof(icmphdr, checksum), &check, sizeof check);
  frame.ip.protocol = IPPROTO_ICMP;
}

constexpr HostileClass kClasses[] = {
    // Below UDP: the kernel's stack drops them, also where the XDP program looks first.
    {"mac_of_another", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) { f.ethernet.h_dest[5] ^= 1; }},
    {"mac_multicast", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) {
       constexpr std::uint8_t kGroup[] = {1, 0, 0x5e, 0, 0, 9};
       std::copy(std::begin(kGroup), std::end(kGroup), f.ethernet.h_dest);
       f.ip.daddr = htonl(0xe0000009);
     }},
    {"ethertype_vlan", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) { f.ethernet.h_proto = htons(ETH_P_8021Q); }},
    {"ethertype_ipv6", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) { f.ethernet.h_proto = htons(ETH_P_IPV6); }},
    {"ip_version_6", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) { f.ip.version = 6; }},
    {"ip_header_of_16_bytes", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) { f.ip.ihl = 4; }},
    {"ip_length_beyond_frame", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random& r) {
       f.ip_length_error = 1 + static_cast<int>(r.below(1000));
     }},
    {"ip_length_of_header", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) {
       f.ip_length_error = -static_cast<int>(sizeof(udphdr) + TARPON_HEADER_BYTES + kPayload);
     }},
    {"ip_checksum", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) { f.wrong_checksum = true; }},
    {"fragment_later", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random& r) {
       f.ip.id = static_cast<std::uint16_t>(r.below(0x10000));
       f.ip.frag_off = htons(static_cast<std::uint16_t>(1 + r.below(0x1ff)));
     }},
    {"udp_length_beyond", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) { f.udp_length_error = 8; }},
    {"udp_length_below_header", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) {
       f.udp_length_error = -static_cast<int>(1 + TARPON_HEADER_BYTES + kPayload);
     }},
    {"icmp_fragmentation_needed", Group::insider, kByKernel,
     [](Frame& f, const Target& t, Random& r) {
       set_icmp(f, t, {ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED}, 68 + r.below(1400));
     }},
    {"icmp_unreachable", Group::insider, kByKernel,
     [](Frame& f, const Target& t, Random& r) {
       set_icmp(f, t, {ICMP_DEST_UNREACH, byte_of(r.below(4))}, 0);
     }},
    {"udp_port_of_nobody", Group::insider, kByKernel,
     [](Frame& f, const Target&, Random&) { f.udp.dest = htons(9); }},

    // Without the cookie.
    {"empty", Group::stranger, kRefused,
     [](Frame& f, const Target&, Random&) { f.datagram_bytes = 0; }},
    {"truncated", Group::insider, kRefused,
     [](Frame& f, const Target&, Random& r) { f.datagram_bytes = r.below(TARPON_HEADER_BYTES); }},
    {"truncated_by_a_byte", Group::insider, kRefused,
     [](Frame& f, const Target&, Random&) { f.datagram_bytes = TARPON_HEADER_BYTES - 1; }},
    {"mac_broadcast", Group::stranger, kRefused,
     [](Frame& f, const Target&, Random&) {
       std::fill(std::begin(f.ethernet.h_dest), std::end(f.ethernet.h_dest), byte_of(0xff));
     }},
    {"random_bytes", Group::stranger, kRefused,
     [](Frame& f, const Target&, Random& r) {
       std::array<std::uint64_t, sizeof f.header / 8> words{};
       for (std::uint64_t& word : words) word = r.next();
       std::memcpy(&f.header, words.data(), sizeof f.header);
       f.header.magic = 0x1234;  // by chance it might be ours
     }},
    {"magic_zero", Group::insider, kRefused,
     [](Frame& f, const Target&, Random&) { f.header.magic = 0; }},
    {"magic_swapped", Group::insider, kRefused,
     [](Frame& f, const Target&, Random&) { f.header.magic = __builtin_bswap16(TARPON_MAGIC); }},
    {"version_zero", Group::insider, kRefused,
     [](Frame& f, const Target&, Random&) { f.header.version = 0; }},
    {"version_next", Group::insider, kRefused,
     [](Frame& f, const Target&, Random&) { f.header.version = TARPON_WIRE_VERSION + 1; }},
    {"job_zero", Group::stranger, kRefused,
     [](Frame& f, const Target&, Random&) { f.header.job = 0; }},
    {"job_guessed", Group::stranger, kRefused,
     [](Frame& f, const Target& t, Random& r) {
       f.header.job = t.job ^ static_cast<std::uint32_t>(1 + r.below(0xffffffff));
     }},
    {"job_one_bit", Group::insider, kRefused,
     [](Frame& f, const Target& t, Random& r) { f.header.job = t.job ^ 1u << r.below(32); }},

    // With the cookie: the endpoint drops them before it believes anything.
    {"type_zero", Group::insider, "type",
     [](Frame& f, const Target&, Random&) { f.header.type = 0; }},
    {"type_unknown", Group::insider, "type",
     [](Frame& f, const Target&, Random& r) {
       f.header.type = byte_of(TARPON_TYPE_END + r.below(0x100 - TARPON_TYPE_END));
     }},
    {"reserved_flags", Group::insider, "fields",
     [](Frame& f, const Target&, Random& r) {
       f.header.flags = byte_of(f.header.flags | 0x40u << r.below(2));
     }},
    {"stage_beyond", Group::insider, "fields",
     [](Frame& f, const Target&, Random& r) {
       f.header.stage = byte_of(TARPON_MAX_STAGES + r.below(12));
     }},
    {"flows_beyond", Group::insider, "fields",
     [](Frame& f, const Target&, Random& r) {
       f.header.stage = byte_of((4 + r.below(12)) << TARPON_FLOWS_SHIFT);
     }},
    {"length_zero", Group::insider, "fields",
     [](Frame& f, const Target&, Random&) { f.header.length = 0; }},
    {"length_too_short", Group::insider, "fields",
     [](Frame& f, const Target&, Random&) { f.header.length = kPayload - 1; }},
    {"length_too_long", Group::insider, "fields",
     [](Frame& f, const Target&, Random& r) {
       f.header.length = static_cast<std::uint16_t>(kPayload + 1 + r.below(60000));
     }},
    {"sender_out_of_range", Group::insider, "sender",
     [](Frame& f, const Target&, Random& r) {
       f.header.sender = static_cast<std::uint16_t>(64 + r.below(0xffff - 64));
     }},
    {"sender_itself", Group::insider, "sender",
     [](Frame& f, const Target& t, Random&) { f.header.sender = t.receiver; }},
    {"sender_from_another_port", Group::insider, "sender",
     [](Frame& f, const Target&, Random&) { f.udp.source = htons(9); }},
    {"sender_from_another_host", Group::insider, "sender",
     [](Frame& f, const Target& t, Random&) {
       f.ip.saddr = t.spoofed.sin_addr.s_addr ^ htonl(64);
     }},
    {"communicator_unknown", Group::insider, "communicator",
     [](Frame& f, const Target&, Random& r) {
       f.header.communicator = static_cast<std::uint16_t>(1 + r.below(0xffff));
     }},
    {"integrity_none", Group::insider, "integrity",
     [](Frame& f, const Target&, Random&) { set_integrity(f, TARPON_INTEGRITY_NONE); }},
    {"integrity_keyed", Group::insider, "integrity",
     [](Frame& f, const Target&, Random&) { set_integrity(f, TARPON_INTEGRITY_KEYED); }},
    {"integrity_of_another_job", Group::insider, "integrity",
     [](Frame& f, const Target& t, Random&) {
       set_integrity(f, t.integrity == TARPON_INTEGRITY_UDP ? TARPON_INTEGRITY_CRC32C
                                                            : TARPON_INTEGRITY_UDP);
     }},
    {"incarnation", Group::insider, "epoch",
     [](Frame& f, const Target&, Random& r) { f.header.incarnation = byte_of(1 + r.below(255)); }},

    // Believed today: only keyed packets end these.
    {"data_old", Group::stateful, kUndefined,
     [](Frame& f, const Target&, Random&) {
       f.header.type = TARPON_DATA;
       f.header.operation = 0;
     }},
    {"data_far_ahead", Group::stateful, kUndefined,
     [](Frame& f, const Target&, Random&) {
       f.header.type = TARPON_DATA;
       f.header.operation = kFarAhead;
     }},
    {"data_early", Group::stateful, kUndefined,
     [](Frame& f, const Target&, Random& r) {
       f.header.type = TARPON_DATA;
       f.header.operation = static_cast<std::uint32_t>(r.below(64));
       f.header.slot = static_cast<std::uint32_t>(r.below(64));
     }},
    {"ready", Group::stateful, kUndefined,
     [](Frame& f, const Target&, Random&) {
       f.header.type = TARPON_READY;
       f.payload.resize(sizeof(tarpon_ready));
       f.header.length = sizeof(tarpon_ready);
     }},
    {"credit_huge", Group::stateful, kUndefined,
     [](Frame& f, const Target&, Random&) {
       f.header.type = TARPON_CREDIT;
       f.header.slot = 0xfffffffe;
     }},
    {"repair_huge_range", Group::stateful, kUndefined,
     [](Frame& f, const Target&, Random&) {
       f.header.type = TARPON_REPAIR;
       std::fill(f.payload.begin(), f.payload.end(), std::byte{0xff});
     }},
    {"closed_far_ahead", Group::stateful, kUndefined,
     [](Frame& f, const Target&, Random&) {
       f.header.type = TARPON_CLOSED;
       f.header.operation = kFarAhead;
     }},
    {"heartbeat_far_ahead", Group::stateful, kUndefined,
     [](Frame& f, const Target&, Random&) {
       f.header.type = TARPON_HEARTBEAT;
       f.header.operation = kFarAhead;
     }},
    {"abort", Group::stateful, kUndefined,
     [](Frame& f, const Target&, Random& r) {
       f.header.type = TARPON_ABORT;
       f.header.operation = static_cast<std::uint32_t>(r.below(64));
     }},
};

std::uint16_t network_length(std::size_t bytes, int error) {
  return htons(static_cast<std::uint16_t>(static_cast<int>(bytes) + error));
}

}  // namespace

std::span<const HostileClass> classes() {
  return kClasses;
}

std::vector<std::byte> HostileFrame::bytes(const Target& target) const {
  tarpon_header whole = header;
  if (target.integrity == TARPON_INTEGRITY_CRC32C) whole.check = packet_check(whole, payload);
  std::vector<std::byte> datagram;
  append(datagram, whole);
  datagram.insert(datagram.end(), payload.begin(), payload.end());
  if (target.integrity == TARPON_INTEGRITY_KEYED) {
    datagram.insert(datagram.end(), TARPON_TAG_BYTES, std::byte{0x5a});  // a guess
  }
  datagram.resize(std::min(datagram_bytes, datagram.size()));
  udphdr upper = udp;
  upper.len = network_length(sizeof upper + datagram.size(), udp_length_error);
  std::vector<std::byte> inner = instead;
  if (inner.empty()) {
    append(inner, upper);
    inner.insert(inner.end(), datagram.begin(), datagram.end());
  }
  iphdr lower = ip;
  lower.tot_len = network_length(sizeof lower + inner.size(), ip_length_error);
  lower.check = internet_checksum(std::as_bytes(std::span(&lower, 1)));
  if (wrong_checksum) ++lower.check;
  std::vector<std::byte> frame;
  append(frame, ethernet);
  append(frame, lower);
  frame.insert(frame.end(), inner.begin(), inner.end());
  return frame;
}

Result<HostileSender> HostileSender::open(const Target& target) {
  HostileSender result;
  result.target_ = target;
  result.socket_ = FileDescriptor(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!result.socket_) return fail_system(errno, "raw packet socket (run as root)");
  ifreq request{};
  target.interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (::ioctl(result.socket_.get(), SIOCGIFHWADDR, &request) != 0) {
    return fail_system(errno, "MAC of " + target.interface);
  }
  std::memcpy(result.own_mac_.data(), request.ifr_hwaddr.sa_data, result.own_mac_.size());
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = static_cast<int>(::if_nametoindex(target.interface.c_str()));
  if (::bind(result.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
      0) {
    return fail_system(errno, "raw packet socket on " + target.interface);
  }
  return result;
}

// But for what a class changes, a packet that the attacked rank would take. Not DATA: the XDP
// program drops DATA of a closed operation before anything else is looked at.
HostileFrame HostileSender::valid_frame(Group group) const {
  HostileFrame frame;
  std::copy(target_.mac.begin(), target_.mac.end(), frame.ethernet.h_dest);
  std::copy(own_mac_.begin(), own_mac_.end(), frame.ethernet.h_source);
  frame.ethernet.h_proto = htons(ETH_P_IP);
  frame.ip.version = 4;
  frame.ip.ihl = 5;
  frame.ip.ttl = 64;
  frame.ip.protocol = IPPROTO_UDP;
  frame.ip.saddr = target_.spoofed.sin_addr.s_addr;
  frame.ip.daddr = target_.address.sin_addr.s_addr;
  frame.udp.source = target_.spoofed.sin_port;
  frame.udp.dest = target_.address.sin_port;
  frame.payload.resize(kPayload);
  frame.header.magic = TARPON_MAGIC;
  frame.header.version = TARPON_WIRE_VERSION;
  frame.header.type = TARPON_HEARTBEAT;
  frame.header.job = group == Group::stranger ? ~target_.job : target_.job;
  frame.header.sender = target_.sender;
  frame.header.length = kPayload;
  frame.header.flags = byte_of(unsigned{target_.integrity} << TARPON_INTEGRITY_SHIFT);
  // Keyed: a number that has not come yet.
  if (target_.integrity == TARPON_INTEGRITY_KEYED) frame.header.check = 1u << 20;
  return frame;
}

std::uint64_t HostileSender::send(const HostileClass& one, std::uint64_t count, double per_second,
                                  Random& random) {
  constexpr std::uint64_t kAtOnce = 16;  // between two looks at the clock
  const Time start = monotonic_now();
  std::uint64_t sent = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    HostileFrame frame = valid_frame(one.group);
    one.change(frame, target_, random);
    const std::vector<std::byte> bytes = frame.bytes(target_);
    if (::send(socket_.get(), bytes.data(), bytes.size(), 0) ==
        static_cast<ssize_t>(bytes.size())) {
      ++sent;
    }
    if (i % kAtOnce != kAtOnce - 1) continue;
    const std::chrono::duration<double> due(static_cast<double>(i + 1) / per_second);
    std::this_thread::sleep_for(start + std::chrono::duration_cast<Duration>(due) -
                                monotonic_now());
  }
  return sent;
}

}  // namespace tarpon::hostile
