// The multicast group through which one datagram reaches all other ranks of a job.
//
// A rank sends to the group from its own UDP socket, and receives from the group by a second one.
// Datagrams stay in the local network (TTL 1), and do not come back to their sender. Datagrams that
// the second socket drops, because its buffer is full or they are not the job's, are not counted.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>

#include "transport/ports/udp_socket.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon {

struct UdpGroup {
  sockaddr_in address{};     // of the group
  in_addr interface {};      // address of the interface that is its member
  PrivateDescriptor socket;  // receives what is sent to it

  /// Nothing more is received.
  void leave() const;
};

/// A group address of 239.0.0.0/8 for the job with this id, and `port`. Jobs may share one: then
/// the kernel refuses what has another cookie.
sockaddr_in group_address(std::uint32_t id, std::uint16_t port);

/// Makes the interface of `sender` a member of `group`, and lets `sender` send to it. `job`: the
/// cookie of the job. Ranks that share a network namespace do not hear each other. Errors:
/// unavailable: the interface cannot multicast, the port is in use; io.
Result<UdpGroup> join_group(const UdpSocket& sender, const sockaddr_in& group, std::uint32_t job,
                            std::size_t receive_buffer = std::size_t{16} << 20);

}  // namespace tarpon
