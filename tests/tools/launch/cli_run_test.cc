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
  Command secret = command;
  secret.arguments.insert(secret.arguments.begin() + 2, {"--integrity", "keyed"});
  command.arguments.insert(command.arguments.begin() + 2, "--require");
  for (const Command& one : {command, required, secret}) {
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

/// Prints which variables are set, and the checksum and size of the secret in the file.
const char* const kShowSecret =
    "echo ${TARPON_SECRET_FILE:+file} ${TARPON_SECRET_FD:+fd} $TARPON_INTEGRITY; "
    "test -z \"$TARPON_SECRET_FILE\" || cksum < $TARPON_SECRET_FILE";

TEST(CliRun, secret__where_packets_are_to_be_keyed__for_all_that_the_program_starts) {
  EXPECT_THAT(shell({"--integrity", "keyed"}, kShowSecret).out,
              MatchesRegex("file keyed\n[0-9]+ 32\n"));
  Command variable = tool({"run", "--", "sh", "-c", kShowSecret});
  variable.environment = {{"TARPON_INTEGRITY", "sealed"}};
  const std::string first = run(variable).out;
  EXPECT_THAT(first, MatchesRegex("file sealed\n[0-9]+ 32\n"));
  EXPECT_NE(run(variable).out, first);  // a new one for each job
  EXPECT_EQ(shell({}, kShowSecret).out, "\n");
}

TEST(CliRun, secret__not_where_one_is_named__nor_for_a_rank_that_others_join) {
  for (const auto& [name, value, out] : {std::tuple{"TARPON_SECRET_FD", "7", "fd keyed\n"},
                                         {"TARPON_SECRET_FROM_STORE", "1", "keyed\n"},
                                         {"WORLD_SIZE", "2", "keyed\n"},
                                         {"WORLD_SIZE", "1", "file keyed\n"}}) {
    Command command = tool({"run", "--integrity", "keyed", "--", "sh", "-c",
                            "echo ${TARPON_SECRET_FILE:+file} ${TARPON_SECRET_FD:+fd} "
                            "$TARPON_INTEGRITY"});
    command.environment = {{name, value}, {"RANK", "0"}};
    EXPECT_EQ(run(command).out, out) << name << "=" << value;
  }
}

/// Launchers of ranks, such as torchrun, close descriptors and hand on the environment.
TEST(CliRun, secret__reaches_ranks_of_a_launcher_that_closes_descriptors) {
  const ScratchDirectory scratch;
  const std::string rank =
      "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done; "
      "exec " TARPON_TOOL " allreduce -b 64K -e 64K -n 2 --world-size 2 --rendezvous file://" +
      (scratch / "meet") + " --rank ";
  const Ended ended =
      shell({"--integrity", "keyed"}, "unset LD_PRELOAD; (" + rank + "1) & (" + rank + "0); wait");
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("# secret: connections are TLS 1.3, packets carry tags"));
}

TEST(CliRun, help__names_variables_and_the_program_s_exit_code) {
  EXPECT_THAT(run(tool({"help", "run"})).out,
              AllOf(HasSubstr("TARPON_BOUNDED_MIN "), HasSubstr("TARPON_REQUIRE "),
                    HasSubstr("TARPON_DEBUG "), Not(HasSubstr("TARPON_RENDEZVOUS ")),
                    HasSubstr("Exit code: that of the program")));
}

}  // namespace
}  // namespace tarpon::test::cli_run_test
