// Where trains of packets are cut.
#pragma once

#include <string>

#include "xdp/result.h"

namespace tarpon {

/// Makes the stack cut GSO trains of TCP and UDP before the interface's driver, by taking from the
/// driver what would cut them; sockets go on sending trains. Call it on a thread inside the
/// interface's namespace. Errors: io, permission.
Result<void> cut_before_driver(const std::string& interface);

}  // namespace tarpon
