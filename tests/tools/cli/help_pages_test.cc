// Help texts and manual pages from a small table: layout, defaults, escaping.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cli/program/help_text.h"
#include "tools/cli/program/man_page.h"

namespace tarpon::cli::help_pages_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct SmallOptions {
  std::uint64_t bytes = 32 << 20;
  bool all = false;
  std::string hidden;
  std::vector<std::string> files;
};

void add_small_options(OptionTable& table, SmallOptions& options) {
  table.add("Sizes", {{"-b,--minbytes", size(options.bytes), "smallest size", Scope::job},
                      {"--all", flag(options.all),
                       std::string(40, 'x') + " " + std::string(40, 'y') + " end"}});
  table.add("", {{"-t,--nthreads", text(options.hidden, "N"), "hidden"}});
  table.add("Files", {{"FILE", words(options.files, "FILE", Times::each), "recordings"}});
  table.note(".starts with a dot and has a back\\slash");
  table.environment(
      {{"A_VARIABLE", "what it is for"},
       {"RANK, WORLD_SIZE, LOCAL_WORLD_SIZE", "too long to have its text beside it"}});
}

int run_small(const SmallOptions&) {
  return 0;
}

Catalogue catalogue() {
  return {{.name = "tarpon",
           .version = "1.2",
           .build = "abc",
           .summary = "the program",
           .exit_codes = "Exit code: 0.",
           .environment = {{"A_VARIABLE", "what it is for"}}},
          {command("show", "show it", add_small_options, run_small), family("xdp", "programs"),
           command("xdp load", "attach it", add_small_options, run_small)}};
}

TEST(HelpText, command_help__layout) {
  const Catalogue all = catalogue();
  EXPECT_EQ(command_help(all, *all.find("show")),
            "tarpon show: show it\n"
            "\n"
            "Usage: tarpon show [OPTION...] [FILE...]\n"
            "\n"
            "Sizes:\n"
            "  -b, --minbytes SIZE         smallest size (default 32M) *\n"
            "      --all                   xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n"
            "                              yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy end\n"
            "\n"
            "Files:\n"
            "  FILE                        recordings\n"
            "\n"
            "* All ranks of a job must be given the same.\n"
            "\n"
            ".starts with a dot and has a back\\slash\n"
            "\n"
            "Exit code: 0.\n"
            "\n"
            "Environment:\n"
            "  A_VARIABLE                  what it is for\n"
            "  RANK, WORLD_SIZE, LOCAL_WORLD_SIZE\n"
            "                              too long to have its text beside it\n");
}

TEST(HelpText, program_help__first_words_only) {
  const std::string text = program_help(catalogue());
  EXPECT_THAT(text, HasSubstr("  show  show it\n"));
  EXPECT_THAT(text, HasSubstr("  xdp   programs\n"));
  EXPECT_THAT(text, Not(HasSubstr("xdp load")));
  EXPECT_THAT(text, HasSubstr("--version"));
}

TEST(HelpText, command_help__a_family_lists_its_commands) {
  const Catalogue all = catalogue();
  const std::string text = command_help(all, *all.find("xdp"));
  EXPECT_THAT(text, HasSubstr("Usage: tarpon xdp COMMAND\n"));
  EXPECT_THAT(text, HasSubstr("  xdp load  attach it\n"));
}

TEST(ManPage, command_page__sections_and_escapes) {
  const Catalogue all = catalogue();
  const std::string page = command_page(all, *all.find("xdp load"));
  EXPECT_THAT(page, ::testing::StartsWith(".TH TARPON\\-XDP\\-LOAD 1 \"\" \"tarpon 1.2\""));
  EXPECT_THAT(page, HasSubstr(".SH NAME\ntarpon\\-xdp\\-load \\- attach it\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n.B \\-b, \\-\\-minbytes SIZE\nsmallest size (default 32M"));
  EXPECT_THAT(page, HasSubstr("\n\\&.starts with a dot and has a back\\eslash\n"));
  EXPECT_THAT(page, Not(HasSubstr("nthreads")));
  for (const char* section : {"SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "ENVIRONMENT",
                              "SEE ALSO\n.BR tarpon (1)"}) {
    EXPECT_THAT(page, HasSubstr(std::string(".SH ") + section));
  }
  EXPECT_EQ(page_file(all, *all.find("xdp load")), "tarpon-xdp-load.1");
}

TEST(ManPage, program_page__names_the_others) {
  const std::string page = program_page(catalogue());
  EXPECT_THAT(page, HasSubstr(".BR tarpon\\-show (1),\n.BR tarpon\\-xdp (1)\n"));
  EXPECT_THAT(page, HasSubstr(".B tarpon show\nshow it\n"));
}

}  // namespace
}  // namespace tarpon::cli::help_pages_test
