// The index of an interface, and the number of its receive queues.
#pragma once

#include <cstdint>
#include <string>

#include "xdp/base/result.h"

namespace tarpon::xdp {

/// Index of the interface `name`. Errors: invalid_argument (no such interface here).
Result<unsigned> interface_index(const std::string& name);

/// Receive queues in use; 1 where the driver does not say.
std::uint32_t receive_queues(const std::string& name);

}  // namespace tarpon::xdp
