// The environment variables of Tarpon, a row each: for help, manual pages and `tarpon info`.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/option_table.h"

namespace tarpon {

/// The variables that say which rank of which job a process is. A name with * stands for all names
/// that begin so.
std::vector<cli::Variable> place_variables();

/// The variables of a job's network and messages.
std::vector<cli::Variable> network_variables();

/// The variables of the calls of a program: libtarpon_gloo.so and the package tarpon_torch read
/// them. The tool's own jobs do not: they have options.
std::vector<cli::Variable> call_variables();

/// All of them.
std::vector<cli::Variable> environment_variables();

/// The variables' names, one an element, without those that contain *.
std::vector<std::string> environment_names();

}  // namespace tarpon
