// The environment variables that a job reads, a row each: for help, manual pages and `tarpon info`.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/option_table.h"

namespace tarpon {

/// The variables. A name with * stands for all names that begin so.
std::vector<cli::Variable> environment_variables();

/// The variables' names, one an element, without those that contain *.
std::vector<std::string> environment_names();

}  // namespace tarpon
