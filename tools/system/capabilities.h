// What this process may do.
#pragma once

#include <linux/capability.h>

#include <string>
#include <vector>

#include "xdp/result.h"

namespace tarpon {

/// Whether the effective set of this thread has `capability` (CAP_NET_RAW, ...).
bool has_capability(int capability);

/// Those of `wanted` that are missing, by name: "CAP_BPF". CAP_SYS_ADMIN stands for CAP_BPF too.
std::vector<std::string> missing_capabilities(const std::vector<int>& wanted);

/// Whether `deed` ("loading an XDP program") may be done, which `command` does. Errors: permission.
Result<void> check_xdp_privileges(const std::string& deed, const std::string& command);

}  // namespace tarpon
