#include "tools/cli/program/help_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "tools/cli/exit_code.h"
#include "tools/cli/files/whole_file.h"
#include "tools/cli/program/catalogue.h"
#include "tools/cli/program/help_text.h"
#include "tools/cli/program/man_page.h"
#include "tools/cli/program/parser.h"

namespace tarpon::cli {
namespace {

int write_pages(const Catalogue& catalogue, const std::string& directory) {
  auto written = write_whole_file(fmt::format("{}/{}.1", directory, catalogue.about().name),
                                  program_page(catalogue));
  for (const Entry& entry : catalogue.entries()) {
    if (!written) break;
    written = write_whole_file(directory + "/" + page_file(catalogue, entry),
                               command_page(catalogue, entry));
  }
  return written ? 0 : report(written.error());
}

}  // namespace

void add_help_options(OptionTable& table, HelpOptions& options) {
  table.add(
      "Options",
      {{"COMMAND", completed(words(options.command, "COMMAND", Times::each), Complete::command),
        "the command; without one: all commands"},
       {"--man", flag(options.man), "as a manual page, for man -l -"},
       {"--man-pages", directory(options.man_pages),
        "write all manual pages into this directory, for packages"}});
}

int run_help(const HelpOptions& options, const Invocation& invocation) {
  const Catalogue& catalogue = *invocation.catalogue;
  if (!options.man_pages.empty()) return write_pages(catalogue, options.man_pages);
  const auto [entry, used] = catalogue.match(options.command);
  if (used < options.command.size()) {
    return report(Error::make(
        Error::Code::invalid_argument,
        unknown_command(catalogue, entry == nullptr ? "" : entry->name, options.command[used])));
  }
  if (entry == nullptr) {
    fmt::print("{}", options.man ? program_page(catalogue) : program_help(catalogue));
  } else {
    fmt::print("{}",
               options.man ? command_page(catalogue, *entry) : command_help(catalogue, *entry));
  }
  return 0;
}

}  // namespace tarpon::cli
