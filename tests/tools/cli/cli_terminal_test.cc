// What the tool shows on a terminal and nowhere else: colour for what failed, and a progress line
// of which nothing stays. The terminal is that of script(1).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "tests/support/child_program.h"

namespace tarpon::test::cli_terminal_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kErase = "\r\033[K";

/// `before TOOL arguments` on a terminal. The exit code is that of the command.
Ended on_terminal(const std::string& before, const std::string& arguments,
                  std::map<std::string, std::string> environment = {}) {
  environment.emplace("TERM", "xterm");
  return run({{"script", "-qefc", before + " " TARPON_TOOL " " + arguments, "/dev/null"},
              std::move(environment),
              "."});
}

TEST(CliTerminal, error__red_on_a_terminal_alone) {
  const std::string wrong = "allreduce --local-ranks 2 -b 2K -e 1K";
  const std::string error = "tarpon: -b 2K is above -e 1K";
  EXPECT_THAT(on_terminal("", wrong).out, HasSubstr("\033[31m" + error));
  EXPECT_THAT(on_terminal("", wrong, {{"NO_COLOR", "1"}}).out,
              AllOf(HasSubstr(error), Not(HasSubstr("\033["))));
  EXPECT_THAT(on_terminal("", wrong, {{"TERM", "dumb"}}).out,
              AllOf(HasSubstr(error), Not(HasSubstr("\033["))));
  EXPECT_THAT(on_terminal("", wrong + " 2>&1 | cat").out,
              AllOf(HasSubstr(error), Not(HasSubstr("\033["))));
}

TEST(CliTerminal, error_of_several_ranks__once_and_red) {
  const Ended ended = on_terminal("", "allreduce --local-ranks 2 -b 8 -e 8 -n 1 --json /dev/full");
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  const std::string error = "rank 0: /dev/full: cannot write";
  EXPECT_THAT(ended.out, HasSubstr("\033[31m" + error));
  EXPECT_EQ(ended.out.find(error), ended.out.rfind(error)) << ended.out;
}

TEST(CliTerminal, dumb_terminal__gets_no_control_sequence) {
  const Ended ended =
      on_terminal("", "allreduce --local-ranks 2 -b 1M -e 1M -n 200", {{"TERM", "dumb"}});
  EXPECT_EQ(ended.exit_code, 0) << ended.out;
  EXPECT_EQ(ended.out.find('\033'), std::string::npos) << ended.out;
}

TEST(CliTerminal, check__failing_pairs_are_red) {
  const Ended ended = on_terminal("", "check --local-ranks 2 --probes 2 --inject-loss 100%");
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  EXPECT_THAT(ended.out, HasSubstr("\033[31mFAILING: rank 0"));
  EXPECT_THAT(ended.out, HasSubstr("\033[31m      NO\033[0m"));
}

/// The output erases a progress line, and prints no other one after that.
void expect_erased(const std::string& out) {
  const std::size_t last = out.rfind(kErase);
  ASSERT_NE(last, std::string::npos) << out;
  EXPECT_THAT(out.substr(last), Not(HasSubstr(" %  "))) << out;
}

/// The command shows progress with an estimate, and erases it after a Ctrl-C.
void expect_progress_erased(const std::string& arguments) {
  SCOPED_TRACE(arguments);
  const Ended ended = on_terminal("timeout --foreground -s INT 5", arguments);
  EXPECT_FALSE(ended.hung);
  EXPECT_NE(ended.exit_code, 0);
  const std::regex line("\r\033\\[K +(\\d+) %  [^\r\n]*  ETA \\d+ s");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(ended.out, found, line)) << ended.out;
  EXPECT_LE(std::stoi(found[1]), 100);
  expect_erased(ended.out);
}

TEST(CliTerminal, progress__gone_after_a_ctrl_c) {
  expect_progress_erased("allreduce --local-ranks 2 -b 16K -e 16K -n 1000000000");
}

TEST(CliTerminal, progress__gone_after_an_error) {
  const Ended ended = on_terminal(
      "", "allreduce --local-ranks 2 -b 64M -e 64M -n 1000 -w 0 --max-rate 80mbit --deadline 3s");
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  expect_erased(ended.out);
}

}  // namespace
}  // namespace tarpon::test::cli_terminal_test
