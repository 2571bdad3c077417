// What the mmsg port holds. The io_uring port is one too: it goes this way in threads that have no
// ring.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <span>

#include "transport/ports/aligned_bytes.h"
#include "transport/ports/udp_port.h"

namespace tarpon {

class MmsgPort : public UdpPort {
 public:
  MmsgPort(std::string_view name, UdpSocket socket, std::span<const sockaddr_in> peers,
           const UdpPortOptions& options, UdpFlows flows, FileDescriptor event)
      : UdpPort(name, std::move(socket), peers, options, std::move(flows), std::move(event)) {}

  /// Allocates the receive buffers, if that has not been done.
  void open_buffers();

  std::span<const RxPacket> receive(Time now) override;
  void wait(Time now, Time until) override;

 protected:
  void send_queued() override;

  /// Whether datagrams have been fetched and not been handed out.
  bool holds_datagrams() const { return rx_next_ < rx_count_; }
  /// Adds them to the batch until it is full.
  void hand_out_datagrams();

 private:
  static constexpr std::size_t kRxBuffers = 32;
  struct alignas(cmsghdr) Control {
    std::array<std::byte, kRxControlBytes> bytes;
  };

  void fetch(int descriptor);
  void fetch_next();
  /// The flow of the oldest train to send. REQUIRES: one is queued.
  std::uint8_t next_flow() const { return trains_.train(trains_.queued_train(0)).flow; }

  AlignedBytes rx_memory_;  // null before open_buffers()
  std::array<mmsghdr, kRxBuffers> rx_messages_{};
  std::array<iovec, kRxBuffers> rx_iovecs_{};
  std::array<sockaddr_in, kRxBuffers> rx_names_{};
  std::array<Control, kRxBuffers> rx_controls_{};
  std::size_t rx_next_ = 0;   // first message not yet handed out
  std::size_t rx_count_ = 0;  // messages of the last recvmmsg
  std::size_t rx_wanted_ = kRxBuffers;
  bool group_first_ = false;
};

}  // namespace tarpon
