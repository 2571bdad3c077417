// `tarpon completion`: prints a script that completes command lines.
#pragma once

#include "tools/cli/command.h"

namespace tarpon::cli {

enum class Shell { bash };

struct CompletionOptions {
  Shell shell = Shell::bash;
};

void add_completion_options(OptionTable& table, CompletionOptions& options);

/// Returns 0.
int run_completion(const CompletionOptions& options, const Invocation& invocation);

}  // namespace tarpon::cli
