// The operation windows of one port: which operations the XDP program drops first-time DATA of, in
// the driver. They lie in a BPF map of the port alone.
//
// One thread at a time.
#pragma once

#include <cstdint>

#include "bpf/packet.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon::xdp {

/// Owns the map's descriptor and its mapping. Move-only; empty by default.
class PortWindows {
 public:
  /// Makes a map in which no operation is closed. Errors: permission (CAP_BPF), io.
  static Result<PortWindows> create();
  /// Maps the windows behind `map`, a descriptor that create() made. Errors: io.
  static Result<PortWindows> map(PrivateDescriptor map);

  PortWindows() = default;
  PortWindows(PortWindows&& other) noexcept;
  PortWindows& operator=(PortWindows&& other) noexcept;
  ~PortWindows();

  int fd() const { return map_.get(); }

  /// Makes the driver drop first-time DATA of `tag` below operation `lowest` from now on. Does
  /// nothing while empty.
  void publish(std::uint32_t tag, std::uint32_t lowest);

 private:
  PrivateDescriptor map_;
  tarpon_windows* mapped_ = nullptr;
};

}  // namespace tarpon::xdp
