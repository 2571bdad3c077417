// The objects behind the rules that EndpointOptions names. Another rule is a value in
// traffic_rules.h, a class of its own, and a case here.
#pragma once

#include <memory>

#include "transport/endpoint_options.h"
#include "transport/port.h"
#include "transport/rate/inflow.h"
#include "transport/rate/send_pace.h"

namespace tarpon {

std::unique_ptr<Inflow> make_inflow(const EndpointOptions& options, const PortCapabilities& port);
std::unique_ptr<SendPace> make_send_pace(const EndpointOptions& options);

}  // namespace tarpon
