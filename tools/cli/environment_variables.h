// The environment variables that a job reads, a row each: for help, manual pages and `tarpon info`.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/option_table.h"

namespace tarpon {

/// Names with * stand for all that begin so.
std::vector<cli::Variable> environment_variables();

/// Each name of its own, but for those with *.
std::vector<std::string> environment_names();

}  // namespace tarpon
