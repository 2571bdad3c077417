// The processors that this process may use.
#pragma once

#include <optional>
#include <string>

namespace tarpon {

/// The smallest CPU quota of the control groups (version 1 or 2) that hold this process, in
/// processors: 0.5 is half of one. Nothing if none limits it, or if it cannot be read. `root`: what
/// paths begin with, for tests.
std::optional<double> cpu_quota(const std::string& root = "");

/// Processors that this process may run on (its affinity), at least 1.
int allowed_processors();

/// Processors whose time this process may use: allowed_processors(), or the quota if that is less.
double usable_processors();

}  // namespace tarpon
