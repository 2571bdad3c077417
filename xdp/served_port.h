// The place of a rank's port in the XDP program, by `tarpon xdp serve` (helper.h): for a process
// without privileges.
//
// Every wait for the helper is bounded. The port goes with this object, or with the process. A
// helper that ends leaves it open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "xdp/base/private_descriptor.h"
#include "xdp/helper_messages.h"
#include "xdp/port_access.h"

namespace tarpon::xdp {

/// Whether the file of a helper of `interface` (a name) is there.
bool helper_is_there(const std::string& interface);

/// Asks the helper of `interface` (a name) whether it serves this network namespace. Errors:
/// unavailable: no helper, it refuses (its reason), no answer; permission: this user may not
/// connect.
Result<ServedMode> look_for_helper(const std::string& interface);

class ServedPort final : public PortAccess, private SocketSource {
 public:
  /// Claims the port to which the UDP socket `port_socket` is bound. `job`: cookie. Errors: those
  /// of look_for_helper().
  static Result<std::unique_ptr<ServedPort>> claim(const std::string& interface, int port_socket,
                                                   std::uint32_t job);

  SocketSource* source() override { return this; }

  /// The helper enters the sockets itself.
  Result<void> insert_socket(std::uint32_t, int) override { return {}; }
  /// The helper knows the port, its queues and the MAC. Errors: those of look_for_helper().
  Result<PortWindows> open_port(const tarpon_port_key& key,
                                const tarpon_port_entry& entry) override;
  /// Errors: unavailable: packets to a group take the kernel's path.
  Result<void> open_group(const tarpon_port_key& group, const tarpon_port_entry& entry) override;
  /// The helper closes it when this object ends.
  void close_port(const tarpon_port_key&) override {}

 private:
  explicit ServedPort(FileDescriptor connection) : connection_(std::move(connection)) {}

  Result<FileDescriptor> make(std::uint32_t queue, bool busy_poll) override;
  int bind(std::uint32_t queue, std::uint16_t flags) override;

  PrivateDescriptor connection_;
};

}  // namespace tarpon::xdp
