// `tarpon allreduce` on a path that carries less than the interfaces say: its report, and its
// error.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/child_program.h"
#include "tests/support/testbed_network.h"

namespace tarpon::test::shrunk_slots_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ShrunkSlots : public TestbedTest {
 protected:
  /// Two ranks, each in its namespace; the bridge's port of rank 1 drops what is above `mtu`.
  static std::vector<Ended> run_with(int mtu, const std::vector<std::string>& more) {
    const Testbed network = make({});
    EXPECT_EQ(run_in(network.hub(), {"ip", "link", "set", "p1", "mtu", std::to_string(mtu)}), "");
    std::vector<Command> commands;
    for (Rank rank = 0; rank < 2; ++rank) {
      Command command =
          tool({"allreduce", "--rank", std::to_string(rank), "--world-size", "2", "--interface",
                "eth0", "--rendezvous", fmt::format("tcp://{}:29500", network.address(0)), "-b",
                "1M", "-e", "1M", "-n", "2", "-w", "1"});
      command.arguments.insert(command.arguments.begin(),
                               {"nsenter", fmt::format("--net=/proc/{}/fd/{}", ::getpid(),
                                                       network.network_namespace(rank))});
      command.arguments.insert(command.arguments.end(), more.begin(), more.end());
      commands.push_back(std::move(command));
    }
    return run_together(commands);
  }
};

TEST_F(ShrunkSlots, report__has_one_line_and_calls_end_well) {
  const ScratchDirectory scratch;
  const auto ended = run_with(1000, {"--json", scratch / "j"});
  for (const Ended& one : ended) EXPECT_EQ(one.exit_code, 0) << one.error;
  const std::string line =
      "slots shrink to 704 bytes: rank 0 -> rank 1 carries packets of 796 bytes and none of 1052 "
      "(interface MTU 1500); 1 more pair carries no full packets";
  EXPECT_THAT(unwrapped(ended[0].out), AllOf(HasSubstr("# " + line), HasSubstr("slots of 704 B")));
  const auto config = nlohmann::json::parse(std::ifstream(scratch / "j")).at("config");
  EXPECT_EQ(config.at("slot_bytes"), 704);
  EXPECT_EQ(config.at("shrunk_slots"), line);
}

TEST_F(ShrunkSlots, below_the_least_mtu__both_ranks_name_the_pair) {
  for (const Ended& one : run_with(500, {})) {
    EXPECT_NE(one.exit_code, 0);
    EXPECT_THAT(one.error, AllOf(HasSubstr("rank 0 ("), HasSubstr(") -> rank 1 ("),
                                 HasSubstr("only packets below 540 bytes arrive"),
                                 HasSubstr("(1 more pair alike): raise the path's MTU")));
  }
}

}  // namespace
}  // namespace tarpon::test::shrunk_slots_test
