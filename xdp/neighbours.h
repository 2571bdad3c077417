// The kernel's answer to "where does a packet to this host go": next hop, its MAC, the MTU. A user
// of AF_XDP writes Ethernet headers itself; the kernel's ARP resolves the addresses.
//
// Routes, neighbours and links are read by netlink, on request. One thread at a time.
#pragma once

#include <netinet/in.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "xdp/base/result.h"

namespace tarpon::xdp {

using Mac = std::array<std::uint8_t, 6>;

/// An interface as it is now.
struct Link {
  Mac mac{};
  std::uint32_t mtu = 0;
  bool up = false;       // set up by its administrator
  bool carrier = false;  // the other end is connected
};

/// Where packets to a host go.
struct Way {
  bool elsewhere = false;  // stays on this machine or leaves by another interface: for the kernel
  std::optional<Mac> mac;  // of the next hop; nothing while the kernel does not know it
};

class Neighbours {
 public:
  /// Opens it for packets that leave by `interface` (its index). `prefers_it`: packets to other
  /// hosts leave by it where it has a route, although the kernel would choose another interface.
  /// Errors: io.
  static Result<Neighbours> open(unsigned interface, bool prefers_it = false);
  Neighbours(Neighbours&&) noexcept;
  Neighbours& operator=(Neighbours&&) noexcept;
  ~Neighbours();

  /// Reads the state of the interface. Errors: unavailable (it is gone, or not Ethernet), io.
  Result<Link> link();

  /// Reads the neighbours that the kernel knows on the interface: one call serves many way_to().
  /// Errors: io.
  Result<void> read();

  /// Returns the way to `host`, by the current routes and the neighbours of the last read(). When
  /// the MAC is not among them, asks the kernel to resolve it; fd() becomes readable when it has.
  /// Without CAP_NET_ADMIN an empty UDP datagram makes the kernel do so.
  /// Errors: unavailable (no route), io.
  Result<Way> way_to(in_addr host);

  /// Whether the kernel has a route to `host` over the interface, be it the best one or not.
  bool has_route(in_addr host);

  /// Readable when a link, a neighbour or a route has changed.
  int fd() const;
  /// Reads the pending notifications; true when there were any.
  bool changed();

 private:
  struct State;
  explicit Neighbours(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tarpon::xdp
