// The maps of Tarpon's XDP program: which ports, groups and sockets it redirects to, whose windows
// say which operations are over, and what it has counted. Program finds or makes them. A process
// that has them can redirect the packets of any port: no other process gets them.
//
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "bpf/packet.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"
#include "xdp/port_windows.h"

namespace tarpon::xdp {

/// Frames by verdict, over all processors.
using Verdicts = std::array<std::uint64_t, TARPON_VERDICT_COUNT>;

/// "not_ipv4", "closed", ...
const char* name(tarpon_verdict verdict);

class ProgramMaps {
 public:
  struct Descriptors {
    PrivateDescriptor ports;
    PrivateDescriptor sockets;
    PrivateDescriptor slots;
    PrivateDescriptor windows;
    PrivateDescriptor counts;
    PrivateDescriptor late;

    bool complete() const { return ports && sockets && slots && windows && counts && late; }
  };

  /// Maps the slots into memory. REQUIRES: descriptors.complete(). Errors: io.
  static Result<ProgramMaps> open(Descriptors descriptors);
  ProgramMaps(ProgramMaps&&) noexcept;
  ProgramMaps& operator=(ProgramMaps&&) noexcept;
  ~ProgramMaps();

  const Descriptors& descriptors() const { return descriptors_; }

  /// Redirects packets to (address, port), both in network order, and to `entry.mac` to the sockets
  /// of the queues in `entry.queues`. Packets on queue `entry.index` find their port fastest.
  /// Removes older entries with any of these queues: a queue has one owner, so theirs are dead.
  /// Returns the windows of the port. They are new: an earlier owner's writes have no effect.
  Result<PortWindows> open_port(const tarpon_port_key& key, const tarpon_port_entry& entry);
  /// Redirects packets to `group`, a multicast address, and to `entry.mac` as those to the port
  /// that open_port() has opened with the same queues; opening that port again ends it. Errors:
  /// unavailable: another port of the interface has the group; io.
  Result<void> open_group(const tarpon_port_key& group, const tarpon_port_entry& entry);
  /// Of a port or a group. Does nothing if neither is open.
  Result<void> close_port(const tarpon_port_key& key);
  /// The ports that listen and their groups, dead ones included.
  std::vector<std::pair<tarpon_port_key, tarpon_port_entry>> ports() const;

  /// Makes receive queue `queue` redirect to the AF_XDP socket `socket`, which is bound to it.
  Result<void> insert_socket(std::uint32_t queue, int socket);
  /// Ends that. Does nothing if it redirects to none.
  Result<void> remove_socket(std::uint32_t queue);

  Result<Verdicts> verdicts() const;
  /// Frames dropped as closed, by sender, for the port with `index`.
  Result<std::array<std::uint64_t, TARPON_MAX_SENDERS>> late(std::uint32_t index) const;

 private:
  explicit ProgramMaps(Descriptors descriptors) : descriptors_(std::move(descriptors)) {}
  void forget(const tarpon_port_key& key);

  Descriptors descriptors_;
  tarpon_port_slot* mapped_ = nullptr;  // TARPON_MAX_PORTS
};

}  // namespace tarpon::xdp
