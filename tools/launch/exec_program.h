// Replaces this process by another program.
#pragma once

#include <string>
#include <vector>

namespace tarpon {

/// Becomes the program `words[0]`, looked up in PATH, with `words` as its arguments. Returns only
/// on failure: prints why, and returns kNotRun. REQUIRES: not empty.
int exec_program(std::vector<std::string> words);

}  // namespace tarpon
