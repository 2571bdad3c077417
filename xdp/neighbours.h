// The kernel's answer to "where does a packet to this host go": next hop, its MAC, the MTU. AF_XDP
// writes Ethernet headers itself, the kernel's ARP does the finding.
//
// Routes, neighbours and links are read by netlink; nothing is cached here. One thread at a time.
#pragma once

#include <netinet/in.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "xdp/result.h"

namespace tarpon::xdp {

using Mac = std::array<std::uint8_t, 6>;

/// An interface as it is now.
struct Link {
  Mac mac{};
  std::uint32_t mtu = 0;
  bool up = false;       // by its administrator
  bool carrier = false;  // there is somebody at the other end
};

class Neighbours {
 public:
  /// For packets that leave by `interface` (its index). Errors: io.
  static Result<Neighbours> open(unsigned interface);
  Neighbours(Neighbours&&) noexcept;
  Neighbours& operator=(Neighbours&&) noexcept;
  ~Neighbours();

  /// Errors: unavailable (it is gone, or no Ethernet), io.
  Result<Link> link();

  /// Whether packets to `host` stay on this machine or leave by another interface: the kernel's way
  /// is theirs. Errors: unavailable (no route).
  Result<bool> elsewhere(in_addr host);

  /// MAC of the next hop to `host`; nothing while the kernel does not know it: the kernel is then
  /// asked to find out, and fd() tells. Errors: unavailable (no route), permission, io.
  Result<std::optional<Mac>> mac_towards(in_addr host);

  /// Readable when a link, a neighbour or a route has changed.
  int fd() const;
  /// Takes the news; true when there was any.
  bool changed();

 private:
  struct State;
  explicit Neighbours(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tarpon::xdp
