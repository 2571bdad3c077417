// The option that names a user's program, and the replacement of this process by that program.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/option_table.h"

namespace tarpon {

/// The required arguments PROGRAM..., which go to `command`. `command` has to outlive the table.
void add_program(cli::OptionTable& table, std::vector<std::string>& command);

/// Becomes the program `words[0]`, looked up in PATH, with `words` as its arguments. Returns only
/// on failure: prints why, and returns kNotRun. REQUIRES: not empty.
int exec_program(std::vector<std::string> words);

}  // namespace tarpon
