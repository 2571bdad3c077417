#include "transport/ports/xdp/xdp_sender.h"

#include <algorithm>

#include "transport/ports/xdp/xdp_port_state.h"

namespace tarpon {
namespace {

constexpr std::size_t kCopyInFlight = 192;  // a veth's peer has room for 256

}  // namespace

XdpSender::XdpSender(xdp::Queue& queue, std::vector<std::uint16_t> flow_ports)
    : queue_(queue),
      flow_ports_(std::move(flow_ports)),
      in_flight_limit_(queue.grant().zero_copy ? kTransmitFrames : kCopyInFlight) {}

std::span<TxPacket> XdpSender::offer(std::size_t at_most) {
  full_ = false;
  if (queue_.in_flight() + at_most > in_flight_limit_) {
    kick();
    queue_.reap();
    const std::size_t room = in_flight_limit_ - queue_.in_flight();
    full_ = at_most > 0 && room == 0;
    at_most = std::min(at_most, room);
  }
  for (std::size_t at = 0; at < passed_; ++at) {
    if (fill(at)) continue;
    const auto first = static_cast<std::ptrdiff_t>(at);
    const auto last = static_cast<std::ptrdiff_t>(passed_);
    offered_.erase(offered_.begin() + first, offered_.begin() + last);
    frames_.erase(frames_.begin() + first, frames_.begin() + last);
    break;
  }
  passed_ = 0;
  while (offered_.size() < at_most) {
    offered_.emplace_back();
    frames_.emplace_back();
    if (fill(offered_.size() - 1)) continue;
    offered_.pop_back();
    frames_.pop_back();
    break;
  }
  return std::span(offered_).first(std::min(at_most, offered_.size()));
}

/// Puts a free frame at offered_[at]; returns false when there is none.
bool XdpSender::fill(std::size_t at) {
  const std::uint32_t frame = queue_.take();
  if (frame == xdp::FramePool::kNone) return false;
  std::byte* const header = queue_.data(frame) + kFrameOffset + kLowerHeaders;
  std::byte* const room = header + TARPON_HEADER_BYTES;
  offered_[at] = {.header = header, .room = room, .payload = room};
  frames_[at] = frame;
  return true;
}

void XdpSender::send(std::size_t at, const LowerHeaders& headers) {
  const TxPacket& packet = offered_[at];
  const std::uint32_t frame = frames_[at];
  const std::uint32_t datagram = TARPON_HEADER_BYTES + packet.length;
  write_lower(queue_.data(frame) + kFrameOffset, headers, flow_ports_[packet.flow], datagram);
  if (!queue_.send(frame, kFrameOffset, kLowerHeaders + datagram)) {
    ++counted_.tx_dropped;
    return;
  }
  ++counted_.tx_packets;
  ++counted_.tx_units;
  counted_.tx_bytes += datagram;
}

void XdpSender::kick() {
  if (queue_.in_flight() == 0) return;
  for (std::size_t before = queue_.in_flight();;) {
    const xdp::Kick result = queue_.kick();
    ++counted_.system_calls;
    failed_ |= result == xdp::Kick::fatal;
    if (result != xdp::Kick::again && result != xdp::Kick::lost) return;
    queue_.reap();
    if (queue_.in_flight() == 0 || queue_.in_flight() >= before) return;
    before = queue_.in_flight();
  }
}

}  // namespace tarpon
