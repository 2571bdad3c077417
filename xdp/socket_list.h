// The AF_XDP sockets of all processes in this network namespace, from the kernel's sock_diag.
#pragma once

#include <cstdint>
#include <vector>

#include "xdp/base/result.h"

namespace tarpon::xdp {

struct BoundSocket {
  std::uint32_t queue = 0;
  std::uint32_t inode = 0;  // of the socket: see socket_holders()
  bool zero_copy = false;
  std::uint64_t umem_bytes = 0;
  std::uint64_t rx_dropped = 0;
  std::uint64_t rx_ring_full = 0;
  std::uint64_t rx_fill_ring_empty = 0;
};

/// Lists the sockets bound to `interface` (an index). Errors: unavailable (a kernel without
/// CONFIG_XDP_SOCKETS_DIAG), permission, io. Any thread.
Result<std::vector<BoundSocket>> sockets_of(unsigned interface);

}  // namespace tarpon::xdp
