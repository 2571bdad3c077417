// Sets where trains of packets are cut.
#pragma once

#include <string>

#include "xdp/base/result.h"

namespace tarpon {

/// Makes the stack cut GSO trains of TCP and UDP before the interface's driver, by switching off
/// the driver's offloads that cut them. Sockets still send trains. Call it on a thread inside the
/// interface's namespace. Errors: io, permission.
Result<void> cut_before_driver(const std::string& interface);

}  // namespace tarpon
