#include "transport/ports/udp_port.h"

#include <fmt/core.h>

#include <thread>
#include <utility>

#include "transport/clock.h"

namespace tarpon {
namespace {

/// The driver looks for packets this long after the latest train of a lane, before it sleeps. To be
/// woken by each train that arrives takes as much time as to send one.
constexpr Duration kDriverSpin = 100us;

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
                    .in_order = options.lanes == 1,
                    .receive_bytes = socket_.receive_budget()},
      event_(std::move(event)),
      trains_(options, peers.size(), 1 + more_sockets_.size(), group_.has_value()),
      messages_(destinations(peers, group_), trains_.frames()),
      batch_(peers, flows.sources) {
  if (options.job) socket_.refuse_strangers(*options.job);
}

UdpPort::~UdpPort() {
  if (lanes_) lanes_->recall(trains_);
}

Result<void> UdpPort::start_lanes(std::uint32_t lanes_wanted) {
  if (lanes_wanted == 1) return {};
  auto lanes = SendLanes::start(
      {.count = lanes_wanted - 1, .frames = trains_.frames(), .flows = capabilities_.flows},
      messages_.destinations(), event_);
  if (!lanes) return fail(lanes.error());
  lanes_ = std::move(*lanes);
  return {};
}

void UdpPort::flush() {
  settle_lanes();
  if (failure_) return;
  if (lanes_ && (lanes_->busy() || trains_.unsent() > capabilities_.burst)) give_to_lanes();
  if (trains_.queued() > 0 && !(lanes_ && lanes_->busy())) send_queued();
}

void UdpPort::give_to_lanes() {
  lanes_->give(trains_, [this](std::uint8_t flow) { return descriptor(flow); });
}

void UdpPort::settle_lanes() {
  if (!lanes_ || !lanes_->busy()) return;
  const std::uint64_t before = lanes_->settled();
  if (const int fatal = lanes_->settle(trains_); fatal != 0) fail_with(fatal, "send");
  if (lanes_->settled() != before) lanes_settled_ = monotonic_now();
}

void UdpPort::settle_for_driver() {
  settle_lanes();
  if (lanes_) lanes_seen_ = lanes_->settled();
}

bool UdpPort::lanes_let_sleep() {
  if (!lanes_) return true;
  settle_lanes();
  if (trains_.queued() > 0) flush();
  const std::uint64_t seen = std::exchange(lanes_seen_, lanes_->settled());
  if (failure_ || lanes_seen_ != seen) return false;
  if (!lanes_->busy()) return true;
  if (monotonic_now() >= lanes_settled_ + kDriverSpin) {
    return lanes_->fall_asleep();
  }
  std::this_thread::yield();
  return false;
}

void UdpPort::drop_unsent(Lender lender) {
  const bool recalls = lanes_ && lanes_->busy() && trains_.holds(lender);
  if (recalls) {
    if (const int fatal = lanes_->recall(trains_); fatal != 0) fail_with(fatal, "send");
  }
  trains_.drop_queued(lender);
  if (recalls && !failure_) give_to_lanes();  // the trains of others
}

std::span<TxPacket> UdpPort::transmit_frames(std::size_t at_most) {
  settle_lanes();
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
  if (lanes_) lanes_->recall(trains_);
}

PortStatistics UdpPort::statistics() const {
  PortStatistics result = counted_;
  trains_.count(result);
  batch_.count(result);
  result.rx_refused = refused();
  if (lanes_) result.system_calls += lanes_->settled();  // a send each
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
