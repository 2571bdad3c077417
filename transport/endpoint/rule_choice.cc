#include "transport/endpoint/rule_choice.h"

#include "bpf/wire.h"
#include "transport/endpoint/adaptive_inflow.h"
#include "transport/endpoint/buffer_inflow.h"
#include "transport/endpoint/incast_inflow.h"

namespace tarpon {
namespace {

constexpr std::uint64_t kLeastWindow = 32;  // packets

}  // namespace

std::unique_ptr<Inflow> make_inflow(const EndpointOptions& options, const PortCapabilities& port) {
  switch (options.inflow) {
    case InflowRule::window:
      break;
    case InflowRule::incast:
      return std::make_unique<IncastInflow>(port.receive_bytes, options.world_size - 1u);
    case InflowRule::buffers:
      return std::make_unique<BufferInflow>(port.receive_bytes);
  }
  return std::make_unique<AdaptiveInflow>(kLeastWindow * (TARPON_HEADER_BYTES + port.max_payload),
                                          port.receive_bytes);
}

}  // namespace tarpon
