#include "transport/rate/rule_choice.h"

#include "bpf/wire.h"
#include "transport/rate/adaptive_inflow.h"
#include "transport/rate/credit_pace.h"
#include "transport/rate/incast_inflow.h"
#include "transport/rate/timely_pace.h"

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
  }
  return std::make_unique<AdaptiveInflow>(kLeastWindow * (TARPON_HEADER_BYTES + port.max_payload),
                                          port.receive_bytes, options.siblings);
}

std::unique_ptr<SendPace> make_send_pace(const EndpointOptions& options) {
  switch (options.sending) {
    case SendRule::credit:
      break;
    case SendRule::timely:
      return std::make_unique<TimelyPace>(options.world_size, options.max_bytes_per_second);
  }
  return std::make_unique<CreditPace>();
}

}  // namespace tarpon
