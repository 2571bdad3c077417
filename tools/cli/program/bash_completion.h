// Completion for bash. Pure function.
#pragma once

#include <string>

#include "tools/cli/program/catalogue.h"

namespace tarpon::cli {

/// A script to be sourced. It needs only bash and starts no program: it contains the commands, the
/// options and the values with names.
std::string bash_completion(const Catalogue& catalogue);

}  // namespace tarpon::cli
