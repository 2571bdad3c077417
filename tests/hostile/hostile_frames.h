// What a stranger on the network can send to a rank: one row of a table for each class of hostile
// packets, and the sender that puts them on the wire.
//
// A new class is one row in hostile_frames.cc.
#pragma once

#include <linux/if_ether.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpf/wire.h"
#include "transport/random.h"
#include "transport/time.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon::hostile {

/// What the sender knows, and whom it attacks.
enum class Group {
  stranger,  // not the job's cookie
  insider,   // the cookie and the addresses of the ranks; nothing that changes a rank's state
  stateful,  // as insider; these may change what a rank does, unless packets are keyed
};

/// Where packets of a class end, beside the names of DropReason.
inline constexpr std::string_view kByKernel = "kernel";    // before a socket
inline constexpr std::string_view kRefused = "refused";    // PortStatistics::rx_refused
inline constexpr std::string_view kUndefined = "nothing";  // stateful

struct Target {
  std::string interface;  // to send from
  std::array<std::uint8_t, ETH_ALEN> mac{};
  sockaddr_in address{};  // of the attacked rank
  sockaddr_in spoofed{};  // of the rank in whose name it is sent
  std::uint16_t receiver = 0;
  std::uint16_t sender = 1;
  std::uint32_t job = 0;
  tarpon_integrity integrity = TARPON_INTEGRITY_UDP;
};

/// A frame before its lengths and check sums are filled in.
struct HostileFrame {
  ethhdr ethernet{};
  iphdr ip{};
  udphdr udp{};
  tarpon_header header{};
  std::vector<std::byte> payload;
  bool wrong_checksum = false;  // of the IPv4 header

  /// Cuts the datagram behind its first `bytes`, header included.
  std::size_t datagram_bytes = SIZE_MAX;

  /// Added to what the lengths should be.
  int ip_length_error = 0;
  int udp_length_error = 0;

  /// In place of UDP and all that follows it.
  std::vector<std::byte> instead;

  /// What goes on the wire.
  std::vector<std::byte> bytes(const Target& target) const;
};

struct HostileClass {
  std::string_view name;
  Group group;
  std::string_view counter;  // kByKernel, kRefused, kUndefined or a name of DropReason
  void (*change)(HostileFrame&, const Target&, Random&);
};

std::span<const HostileClass> classes();

/// Sends hostile frames by a raw packet socket.
class HostileSender {
 public:
  /// In the calling thread's network namespace. Errors: permission, io.
  static Result<HostileSender> open(const Target& target);

  /// `count` frames of `one`, at most `per_second`. Returns how many the kernel took.
  std::uint64_t send(const HostileClass& one, std::uint64_t count, double per_second,
                     Random& random);

 private:
  HostileSender() = default;
  HostileFrame valid_frame(Group group) const;

  Target target_;
  std::array<std::uint8_t, ETH_ALEN> own_mac_{};
  FileDescriptor socket_;
};

}  // namespace tarpon::hostile
