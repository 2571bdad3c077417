// The completion for bash, as bash calls it: a line in COMP_WORDS, the answer in COMPREPLY.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/child_program.h"

namespace tarpon::test::cli_completion_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class CliCompletion : public ::testing::Test {
 protected:
  CliCompletion() {
    const Ended made = run(tool({"completion", "bash"}));
    EXPECT_EQ(made.exit_code, 0) << made.error;
    std::ofstream(scratch_ / "script") << made.out;
  }

  /// What the completion offers for the last of `words`. bash makes `=` a word of its own.
  std::vector<std::string> complete(std::vector<std::string> words) const {
    std::string list;
    for (const std::string& word : words) list += " '" + word + "'";
    Command command{{"bash", "-c",
                     fmt::format("source ./script; COMP_WORDS=(tarpon{}); COMP_CWORD={}; _tarpon; "
                                 "for each in \"${{COMPREPLY[@]}}\"; do echo \"$each\"; done",
                                 list, words.size())},
                    {},
                    scratch_.path()};
    const Ended ended = run(command);
    EXPECT_EQ(ended.error, "");
    return lines_of(ended.out);
  }

  ScratchDirectory scratch_;
};

TEST_F(CliCompletion, commands) {
  EXPECT_THAT(complete({"al"}), ElementsAre("all_reduce", "allreduce", "all_gather", "alltoall"));
  EXPECT_THAT(complete({""}), IsSupersetOf({"allreduce", "check", "help", "info", "xdp", "run"}));
  EXPECT_THAT(complete({""}), Not(Contains("load")));
  EXPECT_THAT(complete({"xdp", ""}), IsSupersetOf({"load", "status", "unload", "clean"}));
  EXPECT_THAT(complete({"xdp", "un"}), ElementsAre("unload"));
  EXPECT_THAT(complete({"help", "allr"}), ElementsAre("allreduce"));
  EXPECT_THAT(complete({"completion", ""}), ElementsAre("bash"));
}

TEST_F(CliCompletion, options) {
  EXPECT_THAT(complete({"allreduce", "--mo"}), ElementsAre("--mode"));
  EXPECT_THAT(complete({"allreduce", "-b", "1K", "--minb"}), ElementsAre("--minbytes"));
  EXPECT_THAT(complete({"allreduce", "--nthr"}), IsEmpty());  // accepted, but not shown
}

TEST_F(CliCompletion, values) {
  EXPECT_THAT(complete({"allreduce", "--mode", ""}), ElementsAre("exact", "bounded"));
  EXPECT_THAT(complete({"allreduce", "--mode", "b"}), ElementsAre("bounded"));
  EXPECT_THAT(complete({"allreduce", "--mode", "="}), ElementsAre("exact", "bounded"));
  EXPECT_THAT(complete({"allreduce", "--mode", "=", "e"}), ElementsAre("exact"));
  EXPECT_THAT(complete({"allreduce", "-o", "b"}), UnorderedElementsAre("band", "bor", "bxor"));
  EXPECT_THAT(complete({"xdp", "load", "eth0", "--mode", ""}), ElementsAre("native", "skb"));
  EXPECT_THAT(complete({"allreduce", "--without", "repair,ret"}), ElementsAre("repair,retention"));
  EXPECT_THAT(complete({"allreduce", "--deadline", ""}), IsEmpty());  // nothing is known of it
  EXPECT_THAT(complete({"doctor", "l"}), Contains("lo"));
  EXPECT_THAT(complete({"allreduce", "--interface", "l"}), Contains("lo"));
}

TEST_F(CliCompletion, files) {
  std::ofstream(scratch_ / "with blank.npy") << "";
  std::filesystem::create_directory(scratch_ / "withal");
  EXPECT_THAT(complete({"allreduce", "--input", "wi"}),
              UnorderedElementsAre("with blank.npy", "withal"));
  EXPECT_THAT(complete({"allreduce", "--flight", "wi"}), ElementsAre("withal"));
  EXPECT_THAT(complete({"flight", "with "}), ElementsAre("with blank.npy"));
}

TEST(CliCompletionCommand, shell__needs_to_be_known) {
  const Ended none = run(tool({"completion"}));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_EQ(none.error, "tarpon: SHELL is missing: write tarpon completion SHELL (see --help)\n");
  EXPECT_EQ(run(tool({"completion", "zsh"})).error,
            "tarpon: SHELL: \"zsh\" is not one of bash (see --help)\n");
}

}  // namespace
}  // namespace tarpon::test::cli_completion_test
