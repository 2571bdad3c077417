// What --help says of each command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/child_program.h"

namespace tarpon::test::cli_help_test {
namespace {

/// All commands, as `tarpon --help` lists them, and those of the families.
std::vector<std::vector<std::string>> all_commands() {
  std::vector<std::vector<std::string>> commands;
  bool listed = false;
  for (const std::string& line : lines_of(run(tool({"--help"})).out)) {
    if (line == "Commands:") {
      listed = true;
    } else if (listed && line.starts_with("  ")) {
      commands.push_back({line.substr(2, line.find(' ', 2) - 2)});
    } else {
      listed = false;
    }
  }
  for (const char* word : {"load", "serve", "status", "unload", "clean"}) {
    commands.push_back({"xdp", word});
  }
  return commands;
}

TEST(CliHelp, options__are_all_explained) {
  std::set<std::string> known;
  for (const auto& command : all_commands()) {
    for (const auto& [name, text] : options_in_help(command)) {
      EXPECT_NE(text, "") << command.back() << ' ' << name;
      known.insert(name);
    }
  }
  EXPECT_GT(known.size(), 60u) << "not all were found in the help texts";
}

TEST(CliHelp, every_command__fits_a_terminal_and_speaks_no_jargon) {
  const auto commands = all_commands();
  ASSERT_GE(commands.size(), 13u);
  for (const auto& command : commands) {
    std::vector<std::string> words = command;
    words.push_back("--help");
    const Ended ended = run(tool(words));
    EXPECT_EQ(ended.exit_code, 0) << command.back();
    EXPECT_EQ(ended.error, "");
    for (const std::string& line : lines_of(ended.out)) {
      EXPECT_LE(line.size(), 100u) << command.back() << ": " << line;
      for (const char* word : {"UINT", "FLOAT", " TEXT ", "BOOLEAN", " INT ", "4294967295"}) {
        EXPECT_EQ(line.find(word), std::string::npos) << command.back() << ": " << line;
      }
    }
    // The same by the other way.
    words.pop_back();
    words.insert(words.begin(), "help");
    EXPECT_EQ(run(tool(words)).out, ended.out) << command.back();
  }
}

TEST(CliHelp, options__have_the_notation_of_the_field) {
  const std::string help = run(tool({"help", "allreduce"})).out;
  for (const char* row : {"--local-ranks N ", "--minbytes SIZE ", "--deadline DURATION ",
                          "--max-rate RATE ", "--inject-loss SHARE ", "--json FILE ",
                          "--flight DIR ", "--mode exact|bounded ", "--codec auto|off|on "}) {
    EXPECT_THAT(help, testing::HasSubstr(row));
  }
}

TEST(CliHelp, man__pages_have_the_sections_in_order) {
  for (const auto& command : all_commands()) {
    std::vector<std::string> words{"help", "--man"};
    words.insert(words.end(), command.begin(), command.end());
    const Ended ended = run(tool(words));
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
    const std::string page = ended.out;
    EXPECT_TRUE(page.starts_with(".TH TARPON\\-")) << page;
    const std::size_t name = page.find(".SH NAME\n"), synopsis = page.find(".SH SYNOPSIS\n"),
                      status = page.find(".SH EXIT STATUS\n");
    ASSERT_NE(status, std::string::npos) << command.back();
    EXPECT_LT(name, synopsis);
    EXPECT_LT(synopsis, status);
    for (const std::string& line : lines_of(page)) {
      const bool macro = line.starts_with(".TH ") || line.starts_with(".SH ") ||
                         line.starts_with(".SS ") || line.starts_with(".TP") ||
                         line.starts_with(".PP") || line.starts_with(".B ") ||
                         line.starts_with(".BR ");
      EXPECT_TRUE(macro || !line.starts_with(".")) << line;
      EXPECT_FALSE(line.empty()) << command.back();
    }
  }
}

TEST(CliHelp, man_pages__one_for_each_command) {
  const ScratchDirectory scratch;
  EXPECT_EQ(run(tool({"help", "--man-pages", scratch.path()})).exit_code, 0);
  const auto names = scratch.names();
  EXPECT_EQ(names.size(), all_commands().size() + 1);  // and tarpon.1
  for (const char* name : {"tarpon.1", "tarpon-allreduce.1", "tarpon-xdp-load.1"}) {
    EXPECT_THAT(names, testing::Contains(name));
  }
  const Ended refused = run(tool({"help", "--man-pages", scratch / "none"}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.error, testing::HasSubstr("none/tarpon.1: No such file or directory"));
}

TEST(CliHelp, help__of_an_unknown_command) {
  const Ended ended = run(tool({"help", "alreduce"}));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_EQ(ended.error, "tarpon: \"alreduce\" is not a command: did you mean allreduce?\n");
  EXPECT_EQ(run(tool({"help"})).out, run(tool({"--help"})).out);
}

}  // namespace
}  // namespace tarpon::test::cli_help_test
