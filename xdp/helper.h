// `tarpon xdp serve`: gives the ranks of ordinary users AF_XDP sockets of their own ports on one
// interface. Ranks use it by ServedPort.
//
// A rank proves its port by the UDP socket that is bound to it. It gets the AF_XDP socket and the
// operation windows of that port, never the maps of all ports and sockets. A rank with an AF_XDP
// socket can send any frame on the interface.
//
// DESIGN NOTES
// 1. A rank gets a socket that is not bound, since the kernel locks a UMEM for the process that
//    registers it. SO_BINDTODEVICE keeps the socket on this interface, and the helper binds it to
//    its queue itself.
// 2. The helper keeps nothing on disk. When it ends, the program and its entries stay, and running
//    jobs go on. The entry of a job that ends meanwhile goes with the next owner of its queue.
//
// One thread; nothing that a client does blocks it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"
#include "xdp/helper_client.h"
#include "xdp/program.h"

namespace tarpon::xdp {

class Helper {
 public:
  static constexpr std::size_t kMostClients = TARPON_MAX_PORTS;

  /// Listens at `path`, a file that root and `group` may connect to (mode 0660); makes its
  /// directory. Takes the place of a helper that is dead. Errors: invalid_argument (too long; not a
  /// socket), unavailable (another helper listens there), permission, io.
  static Result<Helper> listen(const std::string& path, std::optional<gid_t> group);
  Helper(Helper&&) noexcept = default;
  Helper& operator=(Helper&&) noexcept = default;
  ~Helper();

  /// Serves clients until `stop` is readable, also those that connected before this call. Their
  /// ports stay open at its end. `program`: on `interface` (index). `copies`: in skb mode. Errors:
  /// unavailable: the interface is gone, or its program. Called once.
  Result<void> serve(unsigned interface, Program program, bool copies, int stop);

 private:
  Helper() = default;
  void welcome();
  /// Answers client `at`, which asks or not, and drops it at its end.
  void answer(std::size_t at, bool asks);

  std::string path_;
  FileDescriptor listener_;
  std::unique_ptr<ServedInterface> served_;
  std::vector<std::unique_ptr<HelperClient>> clients_;
};

}  // namespace tarpon::xdp
