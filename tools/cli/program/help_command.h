// `tarpon help`: the help of a command, and the manual pages.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/command.h"

namespace tarpon::cli {

struct HelpOptions {
  std::vector<std::string> command;  // its words; none: the program
  bool man = false;
  std::string man_pages;  // directory; empty: none
};

void add_help_options(OptionTable& table, HelpOptions& options);

/// Returns 0; 2 for an unknown command; 1 where a page cannot be written.
int run_help(const HelpOptions& options, const Invocation& invocation);

}  // namespace tarpon::cli
