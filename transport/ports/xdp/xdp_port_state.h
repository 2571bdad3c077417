// What the AF_XDP port holds besides its frames (xdp_sender.h, xdp_receiver.h): the ways to the
// peers, and the UDP socket beside.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/ports/wake_event.h"
#include "transport/ports/xdp/xdp_frame.h"
#include "transport/ports/xdp/xdp_port.h"
#include "transport/ports/xdp/xdp_receiver.h"
#include "transport/ports/xdp/xdp_sender.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/neighbours.h"

namespace tarpon {

// More frames would hold more bursts, but fall out of the cache: the kernel walks through them all.
inline constexpr std::uint32_t kReceiveFrames = 1024;
inline constexpr std::uint32_t kTransmitFrames = 512;
/// Time between looks at links and neighbours while news come.
inline constexpr Duration kLookEvery = 20ms;

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
          const FlowPorts& flows, KernelPath slow, FileDescriptor event,
          std::unique_ptr<xdp::PortAccess> access, xdp::Neighbours neighbours, XdpQueues queues);
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
  BellName bell() const override { return event_.name(); }
  void ring(const BellName& bell) override { event_.ring(bell); }
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
  void look_for_failure();

  const XdpPortOptions options_;
  const std::string name_;  // of the interface; a caller may be in another network namespace
  const sockaddr_in local_;
  const std::vector<sockaddr_in> addresses_;
  PortCapabilities capabilities_;
  KernelPath slow_;
  LowerHeaders group_headers_;  // if PortCapabilities::multicasts
  WakeEvent event_;
  const std::unique_ptr<xdp::PortAccess> access_;
  xdp::Neighbours neighbours_;
  const std::vector<std::uint32_t> numbers_;  // of queues_
  const std::uint32_t index_;                 // of the port in the program: its first queue
  xdp::PortWindows windows_;
  std::vector<xdp::Queue> queues_;
  std::vector<Peer> peers_;
  XdpSender sender_;
  XdpReceiver receiver_;

  std::vector<std::size_t> slow_packets_;  // of the frames that sender_ has offered
  bool slow_peers_ = true;                 // the UDP socket serves some
  bool carrier_ = false;                   // as of the last look
  xdp::Mac mac_{};                         // of the interface, as the program knows it
  bool group_is_direct_ = false;           // the program redirects packets to the group too
  bool slow_waits_ = false;                // something may wait in the UDP socket
  Time slow_looked_{};
  bool news_ = false;  // of the link or a neighbour, not looked at yet
  Time looked_{};
  std::vector<pollfd> polled_;

  PortStatistics counted_;
  std::optional<Error> failure_;
};

}  // namespace tarpon
