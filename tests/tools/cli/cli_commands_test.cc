// The help of every command, from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_commands_test {
namespace {

using ::testing::HasSubstr;

TEST(CliHelp, every_command__helps) {
  for (const char* command : {"allreduce", "check", "flight", "testbed"}) {
    const Ended ended = run(tool({command, "--help"}));
    EXPECT_EQ(ended.exit_code, 0) << command;
    EXPECT_EQ(ended.error, "") << command;
    EXPECT_THAT(ended.out, HasSubstr("--")) << command;
    EXPECT_THAT(run(tool({"--help"})).out, HasSubstr(command));
    EXPECT_THAT(ended.out, HasSubstr("Exit code: 0")) << command;
    const bool reads = command[0] == 'a' || command[0] == 'c';
    EXPECT_EQ(count(ended.out, "Environment:"), reads ? 1u : 0u) << command;
    for (const char* word : {"GLOO_SOCKET_IFNAME", "TARPON_PORT ", "TARPON_DEBUG_FILE", "PMIX_*"}) {
      EXPECT_EQ(count(ended.out, word), reads ? 1u : 0u) << command << " " << word;
    }
  }
  const auto options = options_in_help({"allreduce"});
  for (const auto& [option, initial] : std::map<std::string, std::string>{
           {"--op", "sum"},
           {"--mode", "exact"},
           {"--algorithm", "auto"},
           {"--missing", "zero"},
           {"--datatype", "float"},
           {"--datapath", "TARPON_DATAPATH, else auto"},
           {"--integrity", "udp; keyed with a secret"},
           {"--net", "loopback"},
           {"--minbytes", "32M"},
           {"--iters", "20; with --input 1"},
           {"--deadline", "10s"},
           {"--flows", "auto"},
           {"--lanes", "TARPON_LANES, else auto"},
           {"--rendezvous-timeout", "TARPON_RENDEZVOUS_TIMEOUT, else 30s"},
           {"--retain", "64M"},
           {"--dead-after", "5s"}}) {
    EXPECT_THAT(options.at(option), HasSubstr("default " + initial)) << option;
  }
  EXPECT_THAT(options.at("--minbytes"), HasSubstr("powers of 1024"));
  EXPECT_THAT(run(tool({"--version"})).out, HasSubstr("tarpon "));
}

}  // namespace
}  // namespace tarpon::test::cli_commands_test
