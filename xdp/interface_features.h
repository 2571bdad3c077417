// What an interface's driver can do with XDP, as the kernel says by generic netlink (family
// "netdev", since Linux 6.3). Nothing is cached; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "xdp/base/result.h"

namespace tarpon::xdp {

struct InterfaceFeatures {
  bool native_xdp = false;               // XDP in the driver, redirect included
  bool zero_copy = false;                // in AF_XDP; without it the kernel silently copies
  bool multi_buffer = false;             // frames above one buffer reach the program
  std::uint32_t zero_copy_segments = 1;  // buffers of a frame in zero-copy mode
  std::uint64_t raw = 0;                 // the kernel's bits, NETDEV_XDP_ACT_*
};

/// Asks the kernel about `interface` (an index). Some drivers (veth, virtio_net, ...) change their
/// answer with the interface's settings. Errors: unavailable (no such interface; a kernel before
/// 6.3), io.
Result<InterfaceFeatures> interface_features(unsigned interface);

/// The index of the interface at the other end of a veth; nothing when that end is in another
/// network namespace, or when `interface` is not a veth.
std::optional<unsigned> veth_peer(unsigned interface);

}  // namespace tarpon::xdp
