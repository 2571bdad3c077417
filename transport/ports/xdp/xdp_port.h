// AF_XDP under the port interface: frames in shared memory, one socket per receive queue, and an
// ordinary UDP socket on the same address for packets that take the kernel's path.
#pragma once

#include <memory>
#include <vector>

#include "transport/port.h"
#include "transport/ports/udp_flows.h"
#include "transport/ports/udp_socket.h"
#include "xdp/port_access.h"
#include "xdp/queue.h"
#include "xdp/socket.h"

namespace tarpon {

struct XdpPortOptions {
  unsigned interface = 0;             // index
  std::vector<std::uint32_t> queues;  // receive queues of this rank
  std::uint32_t job = 0;              // cookie
  std::uint32_t max_payload = 1408;   // bytes, a multiple of 64
  xdp::CopyMode copy = xdp::CopyMode::automatic;
  bool busy_poll = false;
  bool prefers_interface = false;       // see Neighbours::open()
  xdp::SocketSource* source = nullptr;  // makes the sockets of the queues; null: this process
};

/// Largest payload that travels in one chunk of the UMEM.
std::uint32_t xdp_single_buffer_payload();

/// Receive queues bound by this process.
class XdpQueues {
 public:
  /// Binds those of `options.queues` that are free, at least one. Errors: permission, unavailable
  /// (all taken, mode refused), io.
  static Result<XdpQueues> open(const XdpPortOptions& options);

  bool zero_copy() const;  // granted on all of them
  bool multi_buffer() const;
  bool busy_poll() const;  // has an effect on all of them
  const std::vector<std::uint32_t>& numbers() const { return numbers_; }

 private:
  friend class XdpPort;
  XdpQueues() = default;
  std::vector<xdp::Queue> queues_;
  std::vector<std::uint32_t> numbers_;
};
/// Memory of one queue that the kernel locks.
std::uint64_t xdp_queue_bytes(std::uint32_t max_payload);

/// `socket`: bound to an address of the interface; packets on queues of other ranks, and from peers
/// on this host, come through it. `peers`: addresses by rank. The sockets of `flows` reserve the
/// source ports. Waits for a carrier, at most 5 s. If the carrier is lost later, packets are lost;
/// an interface that is down or gone is the port's failure(). Errors: permission, unavailable
/// (interface down, no carrier, no Ethernet), io.
Result<std::unique_ptr<Port>> make_xdp_port(UdpSocket socket,
                                            std::unique_ptr<xdp::PortAccess> access,
                                            XdpQueues queues, std::vector<sockaddr_in> peers,
                                            const XdpPortOptions& options, UdpFlows flows = {});

/// Datagram bytes that can surely wait without loss, in datagrams of `max_payload`. One queue
/// counts alone, since all packets of a peer may come on the same one.
std::uint64_t xdp_receive_budget(std::uint32_t max_payload);

}  // namespace tarpon
