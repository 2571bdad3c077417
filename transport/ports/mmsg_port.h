// The UDP port over recvmmsg and sendmmsg: works wherever sockets do, and the oracle of the others.
#pragma once

#include <netinet/in.h>

#include <memory>
#include <vector>

#include "transport/port.h"
#include "transport/ports/udp_flows.h"
#include "transport/ports/udp_options.h"
#include "transport/ports/udp_socket.h"

namespace tarpon {

/// A port over `socket`, named "mmsg". `peers`: where each rank receives, by rank.
/// One system call a batch; GSO trains out, GRO trains in, payloads gathered where they lie.
/// With the socket's send buffer full it keeps what transmit() took, and transmit_frames() is empty
/// until that is gone; transmit_frames(), receive() and wait() all try again.
/// Errors: invalid_argument (names the option), io.
Result<std::unique_ptr<Port>> make_mmsg_port(UdpSocket socket, std::vector<sockaddr_in> peers,
                                             UdpPortOptions options = {}, UdpFlows flows = {});

}  // namespace tarpon
