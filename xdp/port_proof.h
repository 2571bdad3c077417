// Proves that a descriptor is the socket of a user's own UDP port.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "bpf/packet.h"
#include "xdp/base/result.h"

namespace tarpon::xdp {

/// The cookie of the network namespace that `socket` belongs to; 0: not a socket.
std::uint64_t network_of(int socket);

/// Where a port has to be.
struct PortPlace {
  unsigned interface = 0;     // index
  std::uint64_t network = 0;  // network_of() a socket there
};

/// Returns address and port of `socket`, as the kernel says. Errors (invalid_argument): it is not
/// an IPv4 UDP socket of the namespace that `user` made (root may have anybody's), or it is not
/// bound to a port of one of the interface's addresses.
Result<tarpon_port_key> prove_port(int socket, uid_t user, const PortPlace& place);

}  // namespace tarpon::xdp
