#include "tools/launch/exec_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/cli/exit_code.h"
#include "tools/cli/voice.h"

namespace tarpon {

void add_program(cli::OptionTable& table, std::vector<std::string>& command) {
  cli::Value program = cli::words(command, "PROGRAM", cli::Times::rest);
  table.add("Program", {{.names = "PROGRAM",
                         .value = completed(std::move(program), cli::Complete::program),
                         .help = "the program and its arguments, after --",
                         .required = true}});
}

int exec_program(std::vector<std::string> words) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  Voice().error(fmt::format("cannot run {}: {}", words[0], std::strerror(errno)));
  return kNotRun;
}

}  // namespace tarpon
