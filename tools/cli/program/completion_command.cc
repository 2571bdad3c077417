#include "tools/cli/program/completion_command.h"

#include <fmt/format.h>

#include "tools/cli/program/bash_completion.h"

namespace tarpon::cli {

void add_completion_options(OptionTable& table, CompletionOptions& options) {
  Value shell = choice(options.shell, Choices<Shell>{{"bash", Shell::bash}});
  table.add("Options", {{"SHELL", otherwise(std::move(shell), ""), "bash", Scope::rank, true}});
  table.note(
      "For one session: source <(tarpon completion bash). An installed tarpon needs nothing: "
      "its script is where bash looks for it.");
}

int run_completion(const CompletionOptions& options, const Invocation& invocation) {
  switch (options.shell) {
    case Shell::bash:
      fmt::print("{}", bash_completion(*invocation.catalogue));
      break;
  }
  return 0;
}

}  // namespace tarpon::cli
