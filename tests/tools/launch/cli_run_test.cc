// `tarpon run`: what a program gets, and which PyTorch it cannot reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "tests/support/child_program.h"

namespace tarpon::test::cli_run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

Ended shell(std::vector<std::string> options, const std::string& script) {
  options.insert(options.begin(), "run");
  options.insert(options.end(), {"--", "sh", "-c", script});
  return run(tool(options));
}

TEST(CliRun, variables__of_the_options_that_are_given) {
  const std::string show =
      "echo $TARPON_MODE,$TARPON_LOSS_TARGET,$TARPON_BOUND,$TARPON_DEADLINE,$TARPON_BOUNDED_MIN,"
      "$TARPON_CODEC,$TARPON_DATAPATH,$TARPON_INTERFACE,$TARPON_REQUIRE,$TARPON_DEBUG";
  EXPECT_EQ(shell({}, show).out, ",,,,,,,,,\n");
  EXPECT_EQ(shell({"--mode", "bounded", "--loss-target", "1%", "--bound", "50ms", "--deadline",
                   "3s", "--bounded-min", "64K", "--codec", "off", "--datapath", "mmsg",
                   "--interface", "lo", "--require", "--verbose"},
                  show)
                .out,
            "bounded,1%,50000us,3000000us,65536,off,mmsg,lo,1,INFO\n");
}

TEST(CliRun, preload__the_shim_before_others) {
  EXPECT_THAT(shell({}, "echo $LD_PRELOAD").out, MatchesRegex("/.*/libtarpon_gloo.so\n"));
  Command command = tool({"run", "--", "sh", "-c", "echo $LD_PRELOAD"});
  command.environment = {{"LD_PRELOAD", "libc.so.6"}};
  EXPECT_THAT(run(command).out, MatchesRegex("/.*/libtarpon_gloo.so:libc.so.6\n"));
}

TEST(CliRun, exit_code__is_the_program_s) {
  EXPECT_EQ(shell({}, "exit 7").exit_code, 7);
  const Ended missing = run(tool({"run", "--", "no-such-program"}));
  EXPECT_EQ(missing.exit_code, 127);
  EXPECT_EQ(missing.error, "tarpon: cannot run no-such-program: No such file or directory\n");
  EXPECT_EQ(run(tool({"run"})).exit_code, 2);
}

/// A module `torch` whose library needs no libgloo, as in a wheel of PyTorch.
TEST(CliRun, a_pytorch_with_gloo_inside__is_told) {
  const ScratchDirectory scratch;
  const std::filesystem::path module = scratch / "torch";
  std::filesystem::create_directories(module / "lib");
  std::ofstream(module / "__init__.py") << "print('loaded')\n";
  std::filesystem::copy_file("/proc/self/exe", module / "lib" / "libtorch_cpu.so");
  Command command = tool({"run", "--", "python3", "-c", "print('went on')"});
  command.environment = {{"PYTHONPATH", scratch / ""}};
  const Ended ended = run(command);
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.out, "went on\n");
  EXPECT_THAT(ended.error, AllOf(HasSubstr("libtorch_cpu.so has Gloo inside"),
                                 HasSubstr("init_process_group(\"tarpon\")")));
  Command behind = command;
  behind.arguments.insert(behind.arguments.begin() + 3, {"env", "-u", "NONE", "SOME=1"});
  EXPECT_EQ(run(behind).out, "went on\n");
  EXPECT_THAT(run(behind).error, HasSubstr("libtorch_cpu.so has Gloo inside"));
  // Words of other programs are not looked at: to read a pipe would empty it.
  Command other =
      tool({"run", "--require", "--", "sh", "-c", "echo kept | cat /dev/stdin", "python3"});
  other.environment = command.environment;
  EXPECT_EQ(run(other).out, "kept\n");
  Command required = command;
  required.environment["TARPON_REQUIRE"] = "1";
  command.arguments.insert(command.arguments.begin() + 2, "--require");
  for (const Command& one : {command, required}) {
    EXPECT_EQ(run(one).exit_code, 1);
    EXPECT_THAT(run(one).out, Not(HasSubstr("went on")));
  }
}

TEST(CliRun, a_wrong_variable__is_refused_like_a_wrong_option) {
  for (const auto& [name, value, remedy] :
       {std::tuple{"TARPON_BOUND", "abc", "not a duration above 0; write for example 50ms or 10s"},
        {"TARPON_BOUNDED_MIN", "abc", "not a size; write for example 1M"},
        {"TARPON_CODEC", "abc", "use auto, on or off"}}) {
    Command command = tool({"run", "--", "echo", "went on"});
    command.environment = {{name, value}};
    const Ended ended = run(command);
    EXPECT_EQ(ended.exit_code, 2) << name;
    EXPECT_EQ(ended.out, "");
    EXPECT_EQ(ended.error, std::string("tarpon: ") + name + "=" + value + ": " + remedy + "\n");
  }
  // An option stands in front of its variable.
  Command command = tool({"run", "--bound", "5ms", "--", "echo", "went on"});
  command.environment = {{"TARPON_BOUND", "abc"}};
  EXPECT_EQ(run(command).out, "went on\n");
}

TEST(CliRun, help__names_variables_and_the_program_s_exit_code) {
  EXPECT_THAT(run(tool({"help", "run"})).out,
              AllOf(HasSubstr("TARPON_BOUNDED_MIN "), HasSubstr("TARPON_REQUIRE "),
                    HasSubstr("TARPON_DEBUG "), Not(HasSubstr("TARPON_RENDEZVOUS ")),
                    HasSubstr("Exit code: that of the program")));
}

}  // namespace
}  // namespace tarpon::test::cli_run_test
