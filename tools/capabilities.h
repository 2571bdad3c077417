// What this process may do.
#pragma once

#include <linux/capability.h>

#include <string>
#include <vector>

namespace tarpon {

/// Whether the effective set of this thread has `capability` (CAP_NET_RAW, ...).
bool has_capability(int capability);

/// Those of `wanted` that are missing, by name: "CAP_BPF". CAP_SYS_ADMIN stands for CAP_BPF too.
std::vector<std::string> missing_capabilities(const std::vector<int>& wanted);

}  // namespace tarpon
