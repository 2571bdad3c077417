// recvmmsg, sendmmsg and ppoll under the port interface.
#include "transport/ports/mmsg_port.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "transport/ports/mmsg_port_state.h"
#include "transport/ports/udp_wait.h"

namespace tarpon {
namespace {

constexpr std::size_t kFewestMmsgBuffers = 4;
/// The most that one recvmmsg should bring, so that it is still in L2 when it is used.
constexpr std::size_t kMmsgTargetBytes = std::size_t{512} << 10;

}  // namespace

void MmsgPort::open_buffers() {
  if (rx_memory_) return;
  rx_memory_ = make_aligned_bytes(kRxBufferBytes * kRxBuffers, 64);
  for (std::size_t i = 0; i < kRxBuffers; ++i) {
    rx_iovecs_[i] = {.iov_base = rx_memory_.get() + i * kRxBufferBytes, .iov_len = kRxBufferBytes};
    msghdr& header = rx_messages_[i].msg_hdr;
    header.msg_iov = &rx_iovecs_[i];
    header.msg_iovlen = 1;
    header.msg_name = &rx_names_[i];
    header.msg_control = rx_controls_[i].bytes.data();
  }
}

// Every round settles a train or leaves; a train is split at most once, so this ends.
void MmsgPort::send_queued() {
  while (trains_.queued() > 0 && !failure_) {
    messages_.clear();
    const std::uint8_t flow = next_flow();
    for (std::size_t i = 0; i < trains_.queued() && !messages_.full(); ++i) {
      const std::uint32_t train = trains_.queued_train(i);
      if (trains_.train(train).flow != flow) break;
      messages_.add(trains_, train);
    }
    const auto count = static_cast<unsigned>(messages_.size());
    const int sent = ::sendmmsg(descriptor(flow), messages_.data(), count, MSG_DONTWAIT);
    const int error = errno;
    ++counted_.system_calls;
    for (int i = 0; i < sent; ++i) trains_.settle(trains_.pop(), 0);
    if (sent >= 0) continue;
    if (error == EAGAIN || error == EINTR) return;
    if (trains_.settle(trains_.pop(), error) == SendOutcome::fatal) fail_with(error, "send");
  }
}

void MmsgPort::fetch(int descriptor) {
  open_buffers();
  for (std::size_t i = 0; i < rx_wanted_; ++i) {
    msghdr& header = rx_messages_[i].msg_hdr;
    header.msg_namelen = sizeof(sockaddr_in);
    header.msg_controllen = kRxControlBytes;
  }
  const int count = ::recvmmsg(descriptor, rx_messages_.data(), static_cast<unsigned>(rx_wanted_),
                               MSG_DONTWAIT, nullptr);
  const int error = errno;
  ++counted_.system_calls;
  rx_next_ = 0;
  rx_count_ = count > 0 ? static_cast<std::size_t>(count) : 0;
  if (count < 0 && fatal_socket_error(error)) fail_with(error, "receive");
  if (rx_count_ == 0) return;
  std::size_t bytes = 1;
  for (std::size_t i = 0; i < rx_count_; ++i) bytes += rx_messages_[i].msg_len;
  rx_wanted_ = std::clamp(kMmsgTargetBytes * rx_count_ / bytes, kFewestMmsgBuffers, kRxBuffers);
}

/// Fetches from the socket or the group, in turns if both have something.
void MmsgPort::fetch_next() {
  if (group_descriptor() < 0) return fetch(socket_.fd());
  group_first_ = !group_first_;
  fetch(group_first_ ? group_descriptor() : socket_.fd());
  if (rx_count_ == 0 && !failure_) fetch(group_first_ ? socket_.fd() : group_descriptor());
}

std::span<const RxPacket> MmsgPort::receive(Time) {
  batch_.clear();
  if (failure_) return {};
  settle_for_driver();
  if (trains_.queued() > 0) flush();
  if (!holds_datagrams()) fetch_next();
  hand_out_datagrams();
  return batch_.packets();
}

void MmsgPort::hand_out_datagrams() {
  for (; holds_datagrams() && !batch_.full(); ++rx_next_) {
    const mmsghdr& message = rx_messages_[rx_next_];
    batch_.add({.data = static_cast<const std::byte*>(rx_iovecs_[rx_next_].iov_base),
                .bytes = message.msg_len,
                .from = rx_names_[rx_next_],
                .control = message.msg_hdr.msg_control,
                .control_bytes = message.msg_hdr.msg_controllen});
  }
}

void MmsgPort::wait(Time now, Time until) {
  if (until <= now || failure_ || !lanes_let_sleep() || holds_datagrams()) return;
  const bool blocked = trains_.queued() > 0;
  std::array<pollfd, 4> polled{};
  polled[0] = {.fd = socket_.fd(), .events = POLLIN, .revents = 0};
  polled[1] = {.fd = event_.fd(), .events = POLLIN, .revents = 0};
  polled[2] = {.fd = blocked ? descriptor(next_flow()) : -1, .events = POLLOUT, .revents = 0};
  polled[3] = {.fd = group_descriptor(), .events = POLLIN, .revents = 0};
  const timespec timeout = wait_timeout(now, until);
  const int ready = ::ppoll(polled.data(), polled.size(), &timeout, nullptr);
  ++counted_.system_calls;
  ++counted_.waits;
  if (ready <= 0) return;
  if (polled[1].revents != 0) {
    event_.drain();
    ++counted_.system_calls;
  }
  if (blocked && (polled[2].revents & POLLOUT) != 0) flush();
}

Result<std::unique_ptr<Port>> make_mmsg_port(UdpSocket socket, std::vector<sockaddr_in> peers,
                                             UdpPortOptions options, UdpFlows flows) {
  if (auto valid = check_udp_options(options, peers); !valid) return fail(valid.error());
  auto event = WakeEvent::open_bell();
  if (!event) return fail(event.error());
  auto port = std::make_unique<MmsgPort>("mmsg", std::move(socket), peers, options,
                                         std::move(flows), std::move(*event));
  port->open_buffers();
  if (auto started = port->start_lanes(options.lanes); !started) return fail(started.error());
  return port;
}

}  // namespace tarpon
