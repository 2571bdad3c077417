// The AF_XDP port: frames to send. A frame belongs to the port until transmit(), then to the
// kernel.
#include <algorithm>
#include <cstring>

#include "transport/ports/xdp_port_state.h"

namespace tarpon {

std::span<TxPacket> XdpPort::transmit_frames(std::size_t at_most) {
  if (failure_) return {};
  // Any frame may turn out to be for a peer that the UDP socket serves.
  if (slow_peers_) at_most = slow_.port->transmit_frames(at_most).size();
  full_ = false;
  if (sender().in_flight() + at_most > in_flight_limit_) {
    kick();
    sender().reap();
    const std::size_t room = in_flight_limit_ - sender().in_flight();
    full_ = at_most > 0 && room == 0;
    at_most = std::min(at_most, room);
  }
  // Frames that were offered and not used are offered again: a call costs what the last one sent.
  for (std::size_t at = 0; at < passed_; ++at) {
    if (offer(at)) continue;
    const auto first = static_cast<std::ptrdiff_t>(at);
    const auto last = static_cast<std::ptrdiff_t>(passed_);
    offered_.erase(offered_.begin() + first, offered_.begin() + last);
    offered_frames_.erase(offered_frames_.begin() + first, offered_frames_.begin() + last);
    break;
  }
  passed_ = 0;
  while (offered_.size() < at_most) {
    offered_.emplace_back();
    offered_frames_.emplace_back();
    if (offer(offered_.size() - 1)) continue;
    offered_.pop_back();
    offered_frames_.pop_back();
    break;
  }
  return std::span(offered_).first(std::min(at_most, offered_.size()));
}

bool XdpPort::offer(std::size_t at) {
  const std::uint32_t frame = sender().take();
  if (frame == xdp::FramePool::kNone) return false;
  std::byte* const header = sender().data(frame) + kFrameOffset + kLowerHeaders;
  std::byte* const room = header + TARPON_HEADER_BYTES;
  offered_[at] = {.header = header, .room = room, .payload = room};
  offered_frames_[at] = frame;
  return true;
}

void XdpPort::transmit(std::span<TxPacket> packets) {
  slow_packets_.clear();
  for (std::size_t i = 0; i < packets.size(); ++i) {
    const TxPacket& packet = packets[i];
    const bool to_all = packet.peer == kAllRanks && capabilities_.multicasts;
    if ((packet.peer >= peers_.size() && !to_all) || packet.flow >= flow_ports_.size() ||
        packet.length > options_.max_payload) {
      ++counted_.tx_dropped;
      sender().give_back_unsent(offered_frames_[i]);
    } else if (!to_all && !peers_[packet.peer].direct) {
      slow_packets_.push_back(i);
    } else {
      const LowerHeaders& headers = to_all ? group_headers_ : peers_[packet.peer].headers;
      if (!send_direct(packet, headers, offered_frames_[i])) ++counted_.tx_dropped;
    }
  }
  if (!slow_packets_.empty()) send_slowly();
  passed_ = packets.size();
  kick();
  // At once, so that the next packets take frames that are still in the cache.
  sender().reap();
}

bool XdpPort::send_direct(const TxPacket& packet, const LowerHeaders& headers,
                          std::uint32_t frame) {
  const std::uint32_t datagram = TARPON_HEADER_BYTES + packet.length;
  write_lower(sender().data(frame) + kFrameOffset, headers, flow_ports_[packet.flow], datagram);
  if (!sender().send(frame, kFrameOffset, kLowerHeaders + datagram)) return false;
  ++counted_.tx_packets;
  ++counted_.tx_units;
  counted_.tx_bytes += datagram;
  return true;
}

void XdpPort::send_slowly() {
  const std::span<TxPacket> frames = slow_.port->transmit_frames(slow_packets_.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const TxPacket& from = offered_[slow_packets_[i]];
    TxPacket& to = frames[i];
    to.peer = from.peer;
    to.flow = from.flow;
    to.length = from.length;
    to.payload = to.room;
    std::memcpy(to.header, from.header, TARPON_HEADER_BYTES);
    std::memcpy(to.room, from.payload, from.length);
  }
  counted_.tx_dropped += slow_packets_.size() - frames.size();
  if (!frames.empty()) slow_.port->transmit(frames);
  for (const std::size_t packet : slow_packets_) {
    sender().give_back_unsent(offered_frames_[packet]);
  }
}

/// Kicks the kernel, again while that makes progress. The next call kicks what is left.
void XdpPort::kick() {
  if (sender().in_flight() == 0) return;
  for (std::size_t before = sender().in_flight();;) {
    const xdp::Kick result = sender().kick();
    ++counted_.system_calls;
    if (result == xdp::Kick::fatal) {
      failure_ = Error::system(sender().error(), "sending on " + name_);
    }
    if (result != xdp::Kick::again && result != xdp::Kick::lost) return;
    sender().reap();
    if (sender().in_flight() == 0 || sender().in_flight() >= before) return;
    before = sender().in_flight();
  }
}

}  // namespace tarpon
