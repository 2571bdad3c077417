// Completion for bash. Pure function.
#pragma once

#include <string>

#include "tools/cli/catalogue.h"

namespace tarpon::cli {

/// A script to be sourced. It needs bash alone, and starts no program: commands, options and values
/// with names are in it.
std::string bash_completion(const Catalogue& catalogue);

}  // namespace tarpon::cli
