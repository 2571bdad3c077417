// What TARPON_DEBUG makes the tool tell, and that it is silent otherwise.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_program.h"

namespace tarpon::test::cli_debug_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Variables = std::map<std::string, std::string>;

/// Rank 0's end of a job of two by hand, both with these variables.
Ended debugged(const Variables& variables, const std::vector<std::string>& more = {}) {
  auto commands = ranks_by_hand(2, free_meeting_point(), {"-b", "1K", "-e", "1K", "-n", "2"});
  for (Command& command : commands) {
    command.environment = variables;
    command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  }
  Ended ended = run_together(commands)[0];
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  return ended;
}

TEST(CliDebug, info__what_was_read_chosen_and_why) {
  const Ended ended =
      debugged({{"TARPON_DEBUG", "INFO"}, {"GLOO_SOCKET_IFNAME", "x"}}, {"--mode", "bounded"});
  EXPECT_THAT(ended.error,
              AllOf(HasSubstr(" INFO INIT "), HasSubstr("] TARPON_DEBUG=INFO\n"),
                    HasSubstr("mode=bounded"), HasSubstr("deadline=10s"),
                    HasSubstr("rank 0 of 2 by flags"), HasSubstr("interface lo (127.0.0.1)"),
                    HasSubstr("named by --interface"), HasSubstr("] connected in "),
                    HasSubstr(" descriptors, 3 threads and "), HasSubstr("] rank 1 at 127.0.0.1:"),
                    HasSubstr(", MTU "), HasSubstr("(0 by that socket), lost 0 in full buffers")));
  EXPECT_THAT(ended.error, ::testing::ContainsRegex("on lo, (uring|mmsg) \\(.+\\)"));
  EXPECT_THAT(ended.error, Not(HasSubstr("GLOO"))) << "not read: --interface was given";
  EXPECT_THAT(ended.error, Not(HasSubstr("CALL")));
}

TEST(CliDebug, settings_of_the_environment__give_way_to_options) {
  const Variables variables{{"TARPON_DEBUG", "INFO"}, {"TARPON_DATAPATH", "mmsg"}};
  EXPECT_THAT(debugged(variables).error,
              AllOf(HasSubstr("] TARPON_DATAPATH=mmsg\n"), HasSubstr("on lo, mmsg (")));
  EXPECT_THAT(
      debugged({{"TARPON_DEBUG", "INFO"}, {"TARPON_DATAPATH", "xdp"}}, {"--datapath", "mmsg"})
          .error,
      HasSubstr("on lo, mmsg ("));
  const Variables target{{"TARPON_LOSS_TARGET", "2%"}};
  EXPECT_THAT(debugged(target, {"--mode", "bounded"}).out, HasSubstr(", target 2 %"));
  EXPECT_THAT(debugged(target, {"--mode", "bounded", "--loss-target", "1%"}).out,
              HasSubstr(", target 1 %"));
}

TEST(CliDebug, codec_of_the_environment__has_to_be_alike_and_gives_way_to_the_option) {
  for (const bool given : {false, true}) {
    auto commands = ranks_by_hand(2, free_meeting_point(), {"-b", "1K", "-e", "1K", "-n", "2"});
    commands[0].environment = {{"TARPON_CODEC", "on"}};
    for (Command& command : commands) {
      command.arguments.insert(command.arguments.end(),
                               {"--rendezvous-timeout", "2s", "--mode", "bounded"});
      if (given) command.arguments.insert(command.arguments.end(), {"--codec", "off"});
    }
    const Ended refused = run_together(commands)[1];
    EXPECT_EQ(refused.exit_code == 0, given) << refused.error;
    if (given) continue;
    EXPECT_THAT(refused.error, AllOf(HasSubstr("codec auto"), HasSubstr("rank 0 does not")));
  }
}

TEST(CliDebug, info__check_too) {
  Command command = tool({"check", "--local-ranks", "2", "--probes", "2"});
  command.environment = {{"TARPON_DEBUG", "INFO"}};
  EXPECT_THAT(run(command).error, AllOf(HasSubstr("] rank 1 at 127.0.0.1:"), HasSubstr("MTU")));
}

TEST(CliReport, flows__those_asked_for_and_those_tried) {
  const ScratchDirectory scratch;
  const auto report = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"allreduce", "--local-ranks", "2", "-b", "4K", "-e", "4K"};
    words.insert(words.end(), {"-n", "1", "--json", scratch / "json"});
    words.insert(words.end(), more.begin(), more.end());
    const Ended ended = run(tool(words));
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
    return ended.out;
  };
  EXPECT_THAT(report({"--flows", "4"}), HasSubstr("\n# Flows to each rank   : 4\n"));
  const auto json = nlohmann::json::parse(content_of(scratch / "json"), nullptr, false);
  EXPECT_EQ(json["results"][0]["flows"], nlohmann::json({4, 4}));
  EXPECT_THAT(report({}), HasSubstr("\n# Flows to each rank   : 1, without a trial: "));
}

TEST(CliDebug, levels__each_tells_more) {
  const std::vector<std::string> faults{"--inject-duplicate", "1%"};
  const std::string version = debugged({{"TARPON_DEBUG", "VERSION"}}, faults).error;
  EXPECT_EQ(lines_of(version).size(), 1u) << version;
  EXPECT_THAT(version, ::testing::MatchesRegex("tarpon VERSION INIT .* tarpon [0-9.]+ .*\n"));
  const std::string warn = debugged({{"TARPON_DEBUG", "WARN"}}, faults).error;
  EXPECT_THAT(warn, AllOf(HasSubstr("VERSION"), HasSubstr("WARN NET"), HasSubstr("faults are"),
                          Not(HasSubstr("INFO"))));
  EXPECT_THAT(debugged({{"TARPON_DEBUG", "WARN"}}).error, Not(HasSubstr("faults are")));
  const std::string trace = debugged({{"TARPON_DEBUG", "TRACE"}}).error;
  EXPECT_THAT(trace, AllOf(HasSubstr("INFO"), HasSubstr("TRACE CALL"), HasSubstr("complete in")));
  EXPECT_EQ(debugged({}).error, "");
}

TEST(CliDebug, subsystems__only_these) {
  const auto lines =
      lines_of(debugged({{"TARPON_DEBUG", "TRACE"}, {"TARPON_DEBUG_SUBSYS", "NET,CALL"}}).error);
  EXPECT_FALSE(lines.empty());
  EXPECT_THAT(lines, Each(::testing::ContainsRegex("^tarpon [A-Z]+ (NET|CALL) ")));
}

TEST(CliDebug, file__one_a_process) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "%h.%p.log";
  EXPECT_EQ(debugged({{"TARPON_DEBUG", "INFO"}, {"TARPON_DEBUG_FILE", path}}).error, "");
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size() - 1), 0);
  ASSERT_EQ(scratch.names().size(), 2u);
  EXPECT_THAT(scratch.names(), Each(StartsWith(std::string(host.data()) + ".")));
  for (const std::string& name : scratch.names()) {
    EXPECT_THAT(content_of(scratch / name), HasSubstr("TARPON_DEBUG_FILE=" + path));
  }
}

TEST(CliDebug, nonsense__named) {
  const auto said = [](const Variables& variables, int exit_code = 2) {
    Command command = tool({"allreduce", "--local-ranks", "2", "-b", "8", "-e", "8"});
    command.environment = variables;
    const Ended ended = run(command);
    EXPECT_EQ(ended.exit_code, exit_code);
    EXPECT_EQ(ended.out, "");
    return ended.error;
  };
  EXPECT_EQ(said({{"TARPON_DEBUG", "LOUD"}}),
            "ranks 0-1: TARPON_DEBUG=LOUD: use VERSION, WARN, INFO or TRACE\n");
  EXPECT_EQ(said({{"TARPON_DEBUG", "INFO"}, {"TARPON_DEBUG_SUBSYS", "NET,DISK"}}),
            "ranks 0-1: TARPON_DEBUG_SUBSYS=NET,DISK: use INIT, NET, CALL\n");
  EXPECT_EQ(said({{"TARPON_DEBUG", "INFO"}, {"TARPON_DEBUG_FILE", "/no/such/file"}}, 1),
            "ranks 0-1: TARPON_DEBUG_FILE=/no/such/file: No such file or directory: create its "
            "directory, or choose another path\n");
  EXPECT_EQ(said({{"TARPON_DATAPATH", "rdma"}}),
            "tarpon: TARPON_DATAPATH=rdma: use auto, xdp, uring or mmsg\n");
  EXPECT_EQ(
      said({{"TARPON_LOSS_TARGET", "100%"}}),
      "tarpon: TARPON_LOSS_TARGET=100%: give a share above 0% and below 100%, such as 0.1%\n");
}

}  // namespace
}  // namespace tarpon::test::cli_debug_test
