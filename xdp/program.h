// Tarpon's XDP program (bpf/tarpon.bpf.c) on an interface, and its maps.
//
// Attached by a bpf_link that every process that uses the program holds: it goes when the last of
// them ends, SIGKILL included, unless an administrator pinned it. Processes find it, and its maps,
// by what the kernel says is attached; nothing has to be agreed on, no file to be found. A program
// that is not ours is named and left alone.
//
// Thread-safe but for publish(), which is for one thread per port.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bpf/packet.h"
#include "xdp/attached.h"
#include "xdp/file_descriptor.h"
#include "xdp/result.h"

namespace tarpon::xdp {

/// Frames by verdict, over all processors.
using Verdicts = std::array<std::uint64_t, TARPON_VERDICT_COUNT>;

/// "not_ipv4", "closed", ...
const char* name(tarpon_verdict verdict);

class Program {
 public:
  /// The program that is on `interface` when it is ours, else a new one. Errors: permission,
  /// unavailable (a foreign program, named; no native XDP in the driver), io.
  static Result<Program> use(unsigned interface, AttachMode mode);

  /// The program that is on `interface`, alone or below libxdp's dispatcher. Errors: unavailable
  /// when there is none of ours.
  static Result<Program> find(unsigned interface);

  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;
  ~Program();

  std::uint32_t id() const { return id_; }
  bool attached_here() const { return attached_here_; }  // by this process

  /// Packets to (address, port), both in network order, and to `entry.mac` go to the sockets of the
  /// queues in `entry.queues`. Those on queue `entry.index` are found fastest. What older entries
  /// say of these queues is removed: a queue has one owner, so theirs are dead.
  Result<void> open_port(const tarpon_port_key& key, const tarpon_port_entry& entry);
  Result<void> close_port(const tarpon_port_key& key);
  /// Who listens, dead ones included.
  std::vector<std::pair<tarpon_port_key, tarpon_port_entry>> ports() const;

  /// Receive queue `queue` redirects to the AF_XDP socket `socket`, which is bound to it.
  Result<void> insert_socket(std::uint32_t queue, int socket);

  /// From now on first-time DATA of `tag` below operation `lowest` to the port with `index` dies in
  /// the driver.
  void publish(std::uint32_t index, std::uint32_t tag, std::uint32_t lowest);
  /// No window holds for the port any more.
  void clear_windows(std::uint32_t index);

  Result<Verdicts> verdicts() const;
  /// Dropped as closed, by sender, for the port with `index`.
  Result<std::array<std::uint64_t, TARPON_MAX_SENDERS>> late(std::uint32_t index) const;

  /// Keeps link and maps as files in `directory` of a BPF file system (made when it is not there),
  /// so that the program stays without a process. Errors: unavailable (attached without a link; no
  /// BPF file system), permission, io.
  Result<void> pin(const std::string& directory) const;

  /// Takes it off the interface, whoever else uses it. Errors: unavailable (attached without a
  /// link), io.
  Result<void> detach();

  /// For BPF_PROG_TEST_RUN.
  int fd() const { return program_.get(); }
  int link_fd() const { return link_.get(); }

 private:
  Program() = default;
  static Result<Program> load();
  Result<void> map_windows();
  void forget(const tarpon_port_key& key);

  FileDescriptor program_;
  FileDescriptor link_;  // empty where the program is attached without one
  FileDescriptor ports_;
  FileDescriptor sockets_;
  FileDescriptor windows_;
  FileDescriptor counts_;
  FileDescriptor late_;
  tarpon_windows* mapped_ = nullptr;  // TARPON_MAX_PORTS
  std::uint32_t id_ = 0;
  bool attached_here_ = false;
};

}  // namespace tarpon::xdp
