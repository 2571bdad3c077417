// Runs a program of commands: parses its command line and runs the command.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/program/catalogue.h"

namespace tarpon::cli {

/// `words`: without the program's name. Returns the exit code of the command; 0 after help or
/// version; 2 after one line on standard error if the words make no sense.
int run_program(const Catalogue& catalogue, const std::vector<std::string>& words);

}  // namespace tarpon::cli
