#include "tools/cli/program/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "tools/cli/exit_code.h"
#include "tools/cli/program/help_text.h"
#include "tools/cli/program/parser.h"
#include "tools/cli/voice.h"

namespace tarpon::cli {

namespace {

/// Keeps the numbers of closed standard descriptors from other files, whose content the output
/// would become. A directory can be neither read nor written, and programs that a command starts
/// do not inherit it.
void reserve_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
}

int run(const Catalogue& catalogue, const std::vector<std::string>& words) {
  const Parsed parsed = parse(catalogue, words);
  const About& about = catalogue.about();
  if (const auto* const mistake = std::get_if<Mistake>(&parsed)) {
    Voice::of_launcher(process_environment()).error(mistake->text + " (see --help)");
    return kUsage;
  }
  if (const auto* const call = std::get_if<Call>(&parsed))
    return call->entry->run(call->invocation);
  if (const auto* const help = std::get_if<ShowHelp>(&parsed)) {
    fmt::print("{}", help->entry == nullptr ? program_help(catalogue)
                                            : command_help(catalogue, *help->entry));
  } else {
    fmt::print("{} {} ({})\n", about.name, about.version, about.build);
  }
  return 0;
}

}  // namespace

int run_program(const Catalogue& catalogue, const std::vector<std::string>& words) {
  reserve_standard_descriptors();
  int code = kFailed;
  try {
    code = run(catalogue, words);
  } catch (const std::exception& error) {  // fmt: a write failed; no memory
    if (std::ferror(stdout) == 0) Voice().error(error.what());
  }
  return with_output_written(code);
}

}  // namespace tarpon::cli
