// Which XDP program is on an interface, and what keeps it there. Read from the kernel at each call;
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon::xdp {

inline constexpr std::string_view kProgramName = "tarpon_xdp";

enum class AttachMode : std::uint8_t { native, generic, offloaded };

/// "native", "skb", "hw"
const char* name(AttachMode mode);

/// One of several programs that libxdp's dispatcher calls.
struct Component {
  std::uint32_t id = 0;
  std::string name;
  bool ours = false;
};

/// A program on an interface, ours or not.
struct Attached {
  std::uint32_t id = 0;
  std::string name;
  AttachMode mode = AttachMode::native;
  bool ours = false;                  // the program or one of its components is ours
  bool dispatcher = false;            // it is libxdp's dispatcher, which calls `components`
  std::vector<Component> components;  // of a dispatcher
  std::uint32_t our_program = 0;      // id of the one that is ours; 0: none

  /// Whether our program is attached directly, not below a dispatcher.
  bool ours_alone() const { return ours && !dispatcher; }
};

/// Returns the XDP program on `interface` (an index); nothing when it has none. Errors: permission
/// (CAP_SYS_ADMIN), io.
Result<std::optional<Attached>> attached_to(unsigned interface);

/// The link that attaches program `id` to `interface`; empty when there is none or we may not see
/// it.
FileDescriptor find_link(std::uint32_t id, unsigned interface);

/// The id of `link`; 0 when `link` is empty.
std::uint32_t link_id(const FileDescriptor& link);

/// "eth0"; "interface 7" when there is none of this index.
std::string interface_text(unsigned interface);

}  // namespace tarpon::xdp
