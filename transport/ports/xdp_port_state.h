// What the AF_XDP port holds. Its code is in three files: xdp_port.cc (set-up, the ways to the
// peers, waiting), xdp_transmit.cc and xdp_receive.cc.
#pragma once

#include <poll.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/ports/address_table.h"
#include "transport/ports/wake_event.h"
#include "transport/ports/xdp_frame.h"
#include "transport/ports/xdp_port.h"
#include "xdp/neighbours.h"
#include "xdp/private_descriptor.h"

namespace tarpon {

// More frames would hold more bursts, but fall out of the cache: the kernel walks through them all.
inline constexpr std::uint32_t kReceiveFrames = 1024;
inline constexpr std::uint32_t kTransmitFrames = 512;
inline constexpr std::size_t kChunksAtOnce = 128;
inline constexpr Duration kLookEvery = 20ms;  // at links and neighbours, while news come

/// The ports of UdpFlows; the UDP port beside owns their sockets.
struct FlowPorts {
  std::vector<std::uint16_t> local;  // network order; flow 0 first
  std::vector<FlowSource> sources;
};

/// The UDP sockets beside AF_XDP. Descriptors are duplicates, to wait on.
struct KernelPath {
  std::unique_ptr<Port> port;
  PrivateDescriptor socket;
  std::optional<sockaddr_in> group;  // of all ranks
  PrivateDescriptor group_socket;    // empty without a group
};

class XdpPort final : public Port {
 public:
  XdpPort(const XdpPortOptions& options, sockaddr_in local, std::vector<sockaddr_in> peers,
          const FlowPorts& flows, KernelPath slow, FileDescriptor event, xdp::Program program,
          xdp::Neighbours neighbours, XdpQueues queues);
  ~XdpPort() override;

  const PortCapabilities& capabilities() const override { return capabilities_; }
  std::span<TxPacket> transmit_frames(std::size_t at_most) override;
  void transmit(std::span<TxPacket> packets) override;
  std::size_t unsent() const override { return 0; }
  // Payloads lie in our own frames, and the UDP socket beside gets copies.
  bool holds(Lender) const override { return false; }
  void drop_unsent(Lender) override {}
  std::span<const RxPacket> receive(Time now) override;
  void wait(Time now, Time until) override;
  void wake() override { event_.wake(); }
  void end_multicast() override;
  void publish(std::uint32_t tag, std::uint32_t lowest_open) override;
  PortStatistics statistics() const override;
  std::optional<Error> failure() const override { return failure_; }

  /// Enters queues and port into the program: packets come from now on.
  Result<void> join();

  /// Waits for a carrier, then for the peers' MACs, both for a bounded time. Errors: unavailable
  /// (interface down, no carrier), io.
  Result<void> settle();

 private:
  struct Peer {
    bool direct = false;  // by AF_XDP; else by the UDP socket
    bool found = true;    // its way is known
    LowerHeaders headers;
  };
  struct Lent {
    std::size_t queue;
    std::uint32_t frame;
  };

  /// Puts a free frame at offered_[at]; false when there is none.
  bool offer(std::size_t at);
  bool send_direct(const TxPacket& packet, const LowerHeaders& headers, std::uint32_t frame);
  void send_slowly();
  void receive_slowly(Time now);
  void look_if_due(Time now);
  /// Looks at the link and at every peer's way again.
  void look_again();
  /// Tells the program where this port listens, and to which group. `mac`: of the interface.
  Result<void> open_port(const xdp::Mac& mac);
  void close_group();
  bool all_found() const;
  void kick();
  void take_chunk(std::size_t queue, const xdp::ReceivedChunk& chunk);
  void take_frame(std::span<const std::byte> frame);
  xdp::Queue& sender() { return queues_.front(); }

  const XdpPortOptions options_;
  const std::string name_;  // of the interface; a caller may be in another network namespace
  const sockaddr_in local_;
  const std::vector<sockaddr_in> addresses_;
  PortCapabilities capabilities_;
  KernelPath slow_;
  LowerHeaders group_headers_;  // if PortCapabilities::multicasts
  WakeEvent event_;
  xdp::Program program_;
  xdp::Neighbours neighbours_;
  const std::vector<std::uint32_t> numbers_;  // of queues_
  const std::uint32_t index_;                 // of the port's operation windows: its first queue
  std::vector<xdp::Queue> queues_;
  std::vector<Peer> peers_;
  const std::vector<std::uint16_t> flow_ports_;  // network order
  AddressTable sources_;

  std::vector<TxPacket> offered_;
  std::vector<std::uint32_t> offered_frames_;
  std::size_t passed_ = 0;                 // how many of offered_, from the first, have gone
  std::vector<std::size_t> slow_packets_;  // indexes in offered_
  bool slow_peers_ = true;                 // the UDP socket serves some
  bool carrier_ = false;                   // as of the last look
  xdp::Mac mac_{};                         // of the interface, as the program knows it
  bool group_is_direct_ = false;           // the program redirects packets to the group too
  std::size_t in_flight_limit_;
  bool full_ = false;  // the last transmit_frames() gave none for that limit

  std::array<xdp::ReceivedChunk, kChunksAtOnce> chunks_{};
  std::vector<Lent> lent_;
  std::vector<RxPacket> batch_;
  std::vector<std::vector<std::byte>> parts_;  // by queue: a frame whose next chunk has not come
  std::vector<std::vector<std::byte>> whole_;  // frames put together for this batch
  std::size_t whole_used_ = 0;
  bool slow_waits_ = false;  // something may wait in the UDP socket
  Time slow_looked_{};
  bool news_ = false;  // of the link or a neighbour, not looked at yet
  Time looked_{};
  std::vector<pollfd> polled_;

  PortStatistics counted_;
  std::optional<Error> failure_;
};

}  // namespace tarpon
