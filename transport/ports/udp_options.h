// Options and size arithmetic that the UDP ports share.
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/port.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Largest UDP datagram over IPv4 in bytes, and so the largest GSO train: 65535 - 20 - 8.
inline constexpr std::uint32_t kMaxUdpBytes = 65507;

/// UDP_MAX_SEGMENTS of the oldest kernels in use; newer ones take 128.
inline constexpr std::uint32_t kMaxGsoSegments = 64;

/// Frames of a port, in trains of full-size packets: the kernel works on some while others fill.
inline constexpr std::uint32_t kTrainsInFlight = 6;
/// Further trains for each lane after the first. A longer queue delays the packets behind it.
inline constexpr std::uint32_t kTrainsOfLane = 4;

/// Most lanes of a port. Three threads send faster than one driver can receive and add.
inline constexpr std::uint32_t kMaxLanes = 4;

/// Options of both UDP ports.
struct UdpPortOptions {
  /// Payload of the largest packet, bytes: a multiple of 64. A datagram above MTU - 28 is refused
  /// by the kernel and counted as dropped. Default: MTU 1500.
  std::uint32_t max_payload = 1408;
  /// Packets in one GSO train, 1 to 64; 1 switches GSO off. A lost train is a burst of losses.
  std::uint32_t gso_segments = kMaxGsoSegments;
  /// Cookie of the job: the kernel refuses datagrams without it (UdpSocket::refuse_strangers()).
  /// Without a value everything is received.
  std::optional<std::uint32_t> job = std::nullopt;
  /// Threads that work for the port, 1 to kMaxLanes: the driver, and threads that send for it.
  std::uint32_t lanes = 1;
};

/// Largest max_payload for an interface with `mtu`, 0 when not even one step fits.
constexpr std::uint32_t max_payload_for_mtu(std::uint32_t mtu) {
  constexpr std::uint32_t kHeaders = 28 + TARPON_HEADER_BYTES;
  const std::uint32_t datagram = std::min(mtu, kMaxUdpBytes + 28);
  return datagram < kHeaders ? 0 : (datagram - kHeaders) / kPayloadStep * kPayloadStep;
}

/// Full-size packets in one train.
constexpr std::uint32_t gso_burst(const UdpPortOptions& options) {
  const std::uint32_t packet = TARPON_HEADER_BYTES + options.max_payload;
  return std::max(1u, std::min(options.gso_segments, kMaxUdpBytes / packet));
}

/// Whether a port can be made of these; the error names the option and its range.
Result<void> check_udp_options(const UdpPortOptions& options, std::span<const sockaddr_in> peers);

}  // namespace tarpon
