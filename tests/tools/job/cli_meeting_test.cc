// How long ranks wait for each other, what they say meanwhile, and the ports that they take.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/child_program.h"

namespace tarpon::test::cli_meeting_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Rank 0 of two, whose rank 1 never comes.
Ended alone(const std::vector<std::string>& arguments,
            const std::map<std::string, std::string>& environment = {}) {
  Command command = ranks_by_hand(2, free_meeting_point(), {"-b", "8", "-e", "8"})[0];
  command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
  command.environment.insert(environment.begin(), environment.end());
  return run(command);
}

TEST(CliMeeting, rendezvous_timeout__an_explicit_one_holds_whatever_the_deadline) {
  // Rank 0 waits for three quarters of its timeout.
  const std::string whole = "rank 1 did not arrive within 0.9 s at ";
  EXPECT_THAT(alone({"--deadline", "300ms", "--rendezvous-timeout", "1200ms"}).error,
              HasSubstr(whole));
  EXPECT_THAT(alone({"-T", "1", "--rendezvous-timeout", "1200ms"}).error, HasSubstr(whole));
  EXPECT_THAT(alone({"--deadline", "300ms"}, {{"TARPON_RENDEZVOUS_TIMEOUT", "1200ms"}}).error,
              HasSubstr(whole));
  EXPECT_THAT(
      alone({"--rendezvous-timeout", "1200ms"}, {{"TARPON_RENDEZVOUS_TIMEOUT", "1h"}}).error,
      HasSubstr(whole));
  EXPECT_THAT(alone({"--deadline", "1200ms"}).error, HasSubstr(whole)) << "it limits the default";
}

TEST(CliMeeting, rendezvous_timeout__of_the_environment_may_be_wrong) {
  const Ended ended = alone({}, {{"TARPON_RENDEZVOUS_TIMEOUT", "90"}});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.error, HasSubstr("TARPON_RENDEZVOUS_TIMEOUT=90: give a duration above 0"));
}

TEST(CliMeeting, waiting__is_told_on_standard_error) {
  const Ended ended = alone({"--rendezvous-timeout", "9s"});
  EXPECT_THAT(ended.error, AllOf(StartsWith("tarpon: waiting for rank 1 at tcp://127.0.0.1:"),
                                 HasSubstr("rank 1 did not arrive within 8 s")));
}

TEST(CliMeeting, unknown_name__is_waited_for_and_a_signal_ends_that) {
  Process waiting(tool({"allreduce", "--rank", "1", "--world-size", "2", "--rendezvous",
                        "unknown.invalid:29500", "--rendezvous-timeout", "10m"}));
  ::usleep(500'000);
  ::kill(waiting.pid(), SIGINT);
  EXPECT_EQ(waiting.wait().signal, SIGINT);
}

TEST(CliMeeting, ports__of_a_range) {
  const std::vector<std::string> small{"-b", "8", "-e", "8", "-n", "1"};
  auto commands = ranks_by_hand(2, free_meeting_point(), small);
  for (Command& one : commands) {
    one.arguments.insert(one.arguments.end(), {"--ports", "24300-24340"});
    one.environment["TARPON_DEBUG"] = "INFO";
  }
  for (const Ended& ended : run_together(commands)) {
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
    EXPECT_THAT(ended.error, HasSubstr("rank 1 at 127.0.0.1:243"));
  }
  commands = ranks_by_hand(2, free_meeting_point(), small);
  for (Command& one : commands) one.environment["TARPON_PORTS"] = "24350";
  for (const Ended& ended : run_together(commands)) {
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.error,
                AllOf(HasSubstr(" port of 24350-24350 is free: each rank of a host needs"),
                      HasSubstr("--ports, TARPON_PORTS")));
  }
}

TEST(CliMeeting, ports__nonsense_is_named) {
  const Ended ended = alone({"--ports", "9-8"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.error, HasSubstr("--ports: \"9-8\" is not a range of ports"));
}

TEST(CliMeeting, slurm__without_srun_says_how_to_start_the_tasks) {
  Command script = tool({"allreduce"});
  script.environment = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}};
  EXPECT_THAT(run(script).error, AllOf(HasSubstr("Slurm has reserved 8 tasks"),
                                       HasSubstr("`srun --ntasks=8 PROGRAM`")));
  script.environment.erase("SLURM_PROCID");
  EXPECT_THAT(run(script).error, AllOf(StartsWith("tarpon: which rank is this? SLURM_NTASKS=8"),
                                       HasSubstr("`srun --ntasks=8 PROGRAM`: give --local-ranks")));
}

}  // namespace
}  // namespace tarpon::test::cli_meeting_test
