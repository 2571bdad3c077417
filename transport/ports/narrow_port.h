// A port whose packets are smaller than the port below would carry: the path carries no larger
// ones.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "transport/ports/forwarding_port.h"

namespace tarpon {

class NarrowPort : public ForwardingPort {
 public:
  /// REQUIRES: max_payload <= that of `inner`.
  NarrowPort(std::unique_ptr<Port> inner, std::uint32_t max_payload)
      : ForwardingPort(std::move(inner)), capabilities_(ForwardingPort::capabilities()) {
    capabilities_.max_payload = max_payload;
  }

  const PortCapabilities& capabilities() const override { return capabilities_; }

 private:
  PortCapabilities capabilities_;
};

}  // namespace tarpon
