// The UDP port over recvmmsg and sendmmsg. It works wherever sockets do, and is the oracle for the
// other ports.
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
/// When the socket's send buffer is full, the port keeps the packets that transmit() took, and
/// transmit_frames() is empty until they are gone; transmit_frames(), receive() and wait() all try
/// again.
/// Errors: invalid_argument (names the option), io.
Result<std::unique_ptr<Port>> make_mmsg_port(UdpSocket socket, std::vector<sockaddr_in> peers,
                                             UdpPortOptions options = {}, UdpFlows flows = {});

}  // namespace tarpon
