// The kernel's answer to "where does a packet to this host go": next hop, its MAC, the MTU. AF_XDP
// writes Ethernet headers itself, the kernel's ARP does the finding.
//
// Routes, neighbours and links are read by netlink, when asked for. One thread at a time.
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

/// Where packets to a host go.
struct Way {
  bool elsewhere = false;  // stays on this machine or leaves by another interface: the kernel's way
  std::optional<Mac> mac;  // of the next hop; nothing while the kernel does not know it
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

  /// Reads the neighbours that the kernel knows on the interface: once for many way_to(). Errors:
  /// io.
  Result<void> read();

  /// The way to `host`, by the routes of now and the neighbours of the last read(). Where its MAC
  /// is not among them the kernel is asked to find out, and fd() tells. Errors: unavailable (no
  /// route), permission, io.
  Result<Way> way_to(in_addr host);

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
