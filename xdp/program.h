// Tarpon's XDP program (bpf/tarpon.bpf.c) on an interface, and its maps.
//
// A bpf_link attaches the program, and every process that uses the program holds that link. The
// program is detached when the last of them ends, also by SIGKILL, unless an administrator pinned
// it. Processes find the program and its maps by what the kernel says is attached; they need no
// agreement and no file. A program that is not ours is named and left alone.
//
// Thread-safe, except publish(): one thread per port calls it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bpf/packet.h"
#include "xdp/attached.h"
#include "xdp/private_descriptor.h"
#include "xdp/result.h"

namespace tarpon::xdp {

/// Frames by verdict, over all processors.
using Verdicts = std::array<std::uint64_t, TARPON_VERDICT_COUNT>;

/// "not_ipv4", "closed", ...
const char* name(tarpon_verdict verdict);

class Program {
 public:
  /// Returns the program on `interface` when it is ours; attaches a new one when there is none.
  /// Errors: permission, unavailable (a foreign program, named; no native XDP in the driver), io.
  static Result<Program> use(unsigned interface, AttachMode mode);

  /// The program that is on `interface`, alone or below libxdp's dispatcher. Errors: unavailable
  /// when there is none of ours.
  static Result<Program> find(unsigned interface);

  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;
  ~Program();

  std::uint32_t id() const { return id_; }
  bool attached_here() const { return attached_here_; }  // by this process

  /// Redirects packets to (address, port), both in network order, and to `entry.mac` to the sockets
  /// of the queues in `entry.queues`. Packets on queue `entry.index` find their port fastest.
  /// Removes older entries with any of these queues: a queue has one owner, so theirs are dead.
  Result<void> open_port(const tarpon_port_key& key, const tarpon_port_entry& entry);
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

  /// Makes the driver drop first-time DATA of `tag` below operation `lowest` to the port with
  /// `index` from now on.
  void publish(std::uint32_t index, std::uint32_t tag, std::uint32_t lowest);
  /// Removes all windows of the port.
  void clear_windows(std::uint32_t index);

  Result<Verdicts> verdicts() const;
  /// Frames dropped as closed, by sender, for the port with `index`.
  Result<std::array<std::uint64_t, TARPON_MAX_SENDERS>> late(std::uint32_t index) const;

  /// Keeps link and maps as files in `directory` of a BPF file system (made when it is not there),
  /// so that the program stays without a process. Errors: unavailable (attached without a link; no
  /// BPF file system), permission, io.
  Result<void> pin(const std::string& directory) const;

  /// Takes the program off the interface, even while other processes use it. Errors: unavailable
  /// (attached without a link), io.
  Result<void> detach();

  /// For BPF_PROG_TEST_RUN.
  int fd() const { return program_.get(); }
  int link_fd() const { return link_.get(); }

 private:
  Program() = default;
  static Result<Program> load();
  Result<void> map_windows();
  void forget(const tarpon_port_key& key);

  PrivateDescriptor program_;
  PrivateDescriptor link_;  // empty where the program is attached without one
  PrivateDescriptor ports_;
  PrivateDescriptor sockets_;
  PrivateDescriptor windows_;
  PrivateDescriptor counts_;
  PrivateDescriptor late_;
  tarpon_windows* mapped_ = nullptr;  // TARPON_MAX_PORTS
  std::uint32_t id_ = 0;
  bool attached_here_ = false;
};

}  // namespace tarpon::xdp
