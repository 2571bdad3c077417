// What this process may do.
#pragma once

#include <linux/capability.h>

#include <string>
#include <vector>

#include "xdp/base/result.h"

namespace tarpon {

/// Whether the effective set of this thread has `capability` (CAP_NET_RAW, ...).
bool has_capability(int capability);

/// The names of the `wanted` capabilities that are missing: "CAP_BPF". CAP_SYS_ADMIN stands for
/// CAP_BPF too.
std::vector<std::string> missing_capabilities(const std::vector<int>& wanted);

/// Checks that this process may do `deed` ("loading an XDP program"), which `command` does. Errors:
/// permission.
Result<void> check_xdp_privileges(const std::string& deed, const std::string& command);

/// Drops all capabilities of this thread but those of `wanted` that it has, for good: no program
/// that it executes gets others. Call it before other threads start. Errors: io.
Result<void> keep_capabilities(const std::vector<int>& wanted);

}  // namespace tarpon
