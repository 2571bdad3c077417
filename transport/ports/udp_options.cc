// Validation of what a UDP port is made of.
#include "transport/ports/udp_options.h"

#include <fmt/core.h>

namespace tarpon {

Result<void> check_udp_options(const UdpPortOptions& options, std::span<const sockaddr_in> peers) {
  const auto invalid = [](std::string message) {
    return fail(Error::Code::invalid_argument, std::move(message));
  };
  constexpr std::uint32_t kLargest = max_payload_for_mtu(0xffffffffu);
  if (options.max_payload < kPayloadStep || options.max_payload > kLargest ||
      options.max_payload % kPayloadStep != 0) {
    return invalid(fmt::format("max_payload {}: give a multiple of {} from {} to {}",
                               options.max_payload, kPayloadStep, kPayloadStep, kLargest));
  }
  if (options.gso_segments < 1 || options.gso_segments > kMaxGsoSegments) {
    return invalid(
        fmt::format("gso_segments {}: give 1 (off) to {}", options.gso_segments, kMaxGsoSegments));
  }
  if (options.lanes < 1 || options.lanes > kMaxLanes) {
    return invalid(fmt::format("{} lanes: give 1 to {}", options.lanes, kMaxLanes));
  }
  if (peers.empty() || peers.size() >= kUnknownRank) {
    return invalid(fmt::format("{} peers: give the address of every rank, 1 to {}", peers.size(),
                               kUnknownRank - 1));
  }
  for (std::size_t rank = 0; rank < peers.size(); ++rank) {
    if (peers[rank].sin_family != AF_INET || peers[rank].sin_port == 0) {
      return invalid(fmt::format("address of rank {}: give an IPv4 address and a port", rank));
    }
  }
  return {};
}

}  // namespace tarpon
