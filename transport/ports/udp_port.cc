#include "transport/ports/udp_port.h"

#include <fmt/core.h>

#include "transport/clock.h"

namespace tarpon {
namespace {

/// Addresses by rank, then that of the group.
std::vector<sockaddr_in> destinations(std::span<const sockaddr_in> peers,
                                      const std::optional<UdpGroup>& group) {
  std::vector<sockaddr_in> result(peers.begin(), peers.end());
  if (group) result.push_back(group->address);
  return result;
}

}  // namespace

UdpPort::UdpPort(std::string_view name, UdpSocket socket, std::span<const sockaddr_in> peers,
                 const UdpPortOptions& options, UdpFlows flows, FileDescriptor event)
    : socket_(std::move(socket)),
      group_(std::move(flows.group)),
      more_sockets_(std::move(flows.sockets)),
      capabilities_{.name = name,
                    .max_payload = options.max_payload,
                    .gathers = true,
                    .checksums = true,
                    .burst = gso_burst(options),
                    .flows = static_cast<std::uint32_t>(1 + more_sockets_.size()),
                    .multicasts = group_.has_value(),
                    .receive_bytes = socket_.receive_budget()},
      event_(std::move(event)),
      trains_(options, peers.size(), 1 + more_sockets_.size(), group_.has_value()),
      messages_(destinations(peers, group_), trains_.frames()),
      batch_(peers, flows.sources) {
  if (options.job) socket_.refuse_strangers(*options.job);
}

std::span<TxPacket> UdpPort::transmit_frames(std::size_t at_most) {
  if (trains_.queued() > 0) flush();
  if (failure_ || trains_.queued() > 0) return {};
  return trains_.offer(at_most);
}

void UdpPort::transmit(std::span<TxPacket> packets) {
  trains_.accept(packets);
  flush();
}

/// A receive that is armed keeps the socket, so it stays open.
void UdpPort::end_multicast() {
  if (group_) group_->leave();
  capabilities_.multicasts = false;
}

void UdpPort::fail_with(int error, const char* what) {
  failure_ = Error::system(error, fmt::format("{} on UDP port {}", what, socket_.port()));
}

PortStatistics UdpPort::statistics() const {
  PortStatistics result = counted_;
  trains_.count(result);
  batch_.count(result);
  result.rx_refused = refused();
  return result;
}

std::uint64_t UdpPort::refused() const {
  const Time now = monotonic_now();
  if (now - refused_asked_ < 1ms) return refused_;
  refused_asked_ = now;
  std::uint32_t latest = socket_.refused();
  for (const UdpSocket& socket : more_sockets_) latest += socket.refused();
  refused_ += latest - refused_latest_;
  refused_latest_ = latest;
  return refused_;
}

}  // namespace tarpon
