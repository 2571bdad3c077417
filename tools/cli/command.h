// One row of the table of commands: name, summary, the function that declares its options, the
// function that runs it.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "tools/cli/option_table.h"

namespace tarpon::cli {

class Catalogue;

/// What a command line contained beside the values of the options.
struct Invocation {
  const Catalogue* catalogue = nullptr;  // all commands, for commands that describe them
  std::set<std::string> names;           // of the options that were given, all names of each

  bool given(const std::string& name) const { return names.contains(name); }
};

/// Returns the exit code.
using Run = std::function<int(const Invocation&)>;

struct Command {
  std::string name;     // "allreduce", or with a word of the family before it: "xdp load"
  std::string summary;  // one line
  /// Fills the table and returns the function that runs the command. Empty for the name of a family
  /// that needs a subcommand.
  std::function<Run(OptionTable&)> declare;
};

/// A command whose options are an `Options`. `run` takes the options, and optionally the
/// Invocation.
template <typename Options, typename Runner>
Command command(std::string name, std::string summary, void (*declare)(OptionTable&, Options&),
                Runner run) {
  const auto prepare = [declare, run](OptionTable& table) -> Run {
    auto options = std::make_shared<Options>();
    declare(table, *options);
    return [options, run](const Invocation& invocation) {
      if constexpr (std::is_invocable_v<Runner, Options&, const Invocation&>) {
        return run(*options, invocation);
      } else {
        return run(*options);
      }
    };
  };
  return {std::move(name), std::move(summary), prepare};
}

/// The name of a family of commands, which does nothing by itself.
inline Command family(std::string name, std::string summary) {
  return {std::move(name), std::move(summary), nullptr};
}

}  // namespace tarpon::cli
