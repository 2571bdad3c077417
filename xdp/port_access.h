// How the port of a rank takes its place in the XDP program: itself, or by `tarpon xdp serve`
// (served_port.h).
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <utility>

#include "bpf/packet.h"
#include "xdp/base/result.h"
#include "xdp/port_windows.h"
#include "xdp/program.h"
#include "xdp/socket.h"

namespace tarpon::xdp {

class PortAccess {
 public:
  virtual ~PortAccess() = default;

  /// Who makes the sockets of the port's queues; null: this process.
  virtual SocketSource* source() { return nullptr; }

  /// As the functions of ProgramMaps. open_port(): repeated for another `entry.mac`.
  virtual Result<void> insert_socket(std::uint32_t queue, int socket) = 0;
  virtual Result<PortWindows> open_port(const tarpon_port_key& key,
                                        const tarpon_port_entry& entry) = 0;
  virtual Result<void> open_group(const tarpon_port_key& group, const tarpon_port_entry& entry) = 0;
  virtual void close_port(const tarpon_port_key& key) = 0;
};

/// With the privileges of this process.
class OwnAccess final : public PortAccess {
 public:
  explicit OwnAccess(Program program) : program_(std::move(program)) {}

  Result<void> insert_socket(std::uint32_t queue, int socket) override {
    return program_.maps().insert_socket(queue, socket);
  }
  Result<PortWindows> open_port(const tarpon_port_key& key,
                                const tarpon_port_entry& entry) override {
    return program_.maps().open_port(key, entry);
  }
  Result<void> open_group(const tarpon_port_key& group, const tarpon_port_entry& entry) override {
    return program_.maps().open_group(group, entry);
  }
  /// The next owner of its queues overwrites an entry that stays.
  void close_port(const tarpon_port_key& key) override { (void)program_.maps().close_port(key); }

 private:
  Program program_;
};

}  // namespace tarpon::xdp
