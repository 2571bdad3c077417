// The receive queues of the AF_XDP port: binding them, and what their frames hold.
#include <algorithm>
#include <utility>

#include "transport/ports/udp_options.h"
#include "transport/ports/xdp/xdp_port_state.h"

namespace tarpon {
namespace {

constexpr std::uint32_t kReceiveHeadroom = 256;  // XDP_PACKET_HEADROOM: the kernel's, in each chunk

}  // namespace

std::uint32_t xdp_single_buffer_payload() {
  const std::uint32_t room =
      xdp::kFrameBytes - kReceiveHeadroom - kLowerHeaders - TARPON_HEADER_BYTES;
  return room / kPayloadStep * kPayloadStep;
}

std::uint64_t xdp_queue_bytes(std::uint32_t max_payload) {
  const std::uint32_t frame = kFrameOffset + kLowerHeaders + TARPON_HEADER_BYTES + max_payload;
  const std::uint32_t chunks = (frame + xdp::kFrameBytes - 1) / xdp::kFrameBytes;
  return std::uint64_t{kReceiveFrames + kTransmitFrames * chunks} * xdp::kFrameBytes;
}

std::uint64_t xdp_receive_budget(std::uint32_t max_payload) {
  const std::uint32_t datagram = TARPON_HEADER_BYTES + max_payload;
  const std::uint32_t room = xdp::kFrameBytes - kReceiveHeadroom;
  const std::uint32_t chunks = (kLowerHeaders + datagram + room - 1) / room;
  // A quarter of the frames is on its way back.
  return std::uint64_t{kReceiveFrames} * 3 / 4 / chunks * datagram;
}

Result<XdpQueues> XdpQueues::open(const XdpPortOptions& options) {
  XdpQueues result;
  Error first = Error::make(Error::Code::invalid_argument, "no receive queue was named");
  for (const std::uint32_t number : options.queues) {
    xdp::QueueOptions wanted;
    wanted.socket.interface = options.interface;
    wanted.socket.queue = number;
    wanted.socket.copy = options.copy;
    wanted.socket.busy_poll = options.busy_poll;
    wanted.socket.source = options.source;
    wanted.receive_frames = kReceiveFrames;
    wanted.transmit_frames = kTransmitFrames;
    wanted.transmit_bytes =
        kFrameOffset + kLowerHeaders + TARPON_HEADER_BYTES + options.max_payload;
    auto queue = xdp::Queue::open(wanted);
    if (queue) {
      result.queues_.push_back(std::move(*queue));
      result.numbers_.push_back(number);
    } else if (number == options.queues.front()) {
      first = queue.error();
    }
  }
  if (result.queues_.empty()) return fail(first);
  return result;
}

bool XdpQueues::zero_copy() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const xdp::Queue& queue) { return queue.grant().zero_copy; });
}

bool XdpQueues::busy_poll() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const xdp::Queue& queue) { return queue.grant().busy_poll; });
}

bool XdpQueues::multi_buffer() const {
  return queues_.front().grant().multi_buffer;
}

}  // namespace tarpon
