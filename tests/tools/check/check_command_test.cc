// `tarpon check` between network namespaces: whose firewall it is, and what an MTU swallows.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <regex>
#include <string>

#include "tests/support/child_program.h"
#include "tests/support/testbed_network.h"

namespace tarpon::test::check_command_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CheckCommand : public TestbedTest {
 protected:
  /// `tarpon check` of two ranks, each in its namespace; what rank 0 says.
  static Ended check(const Testbed& network) { return check(network, "eth0", network.address(0)); }

  /// The same over `interface`, which has `address` at rank 0.
  static Ended check(const Testbed& network, const std::string& interface,
                     const std::string& address) {
    std::vector<Command> commands;
    for (Rank rank = 0; rank < 2; ++rank) {
      Command command = tool({"check", "--rank", std::to_string(rank), "--world-size", "2",
                              "--interface", interface, "--rendezvous",
                              fmt::format("tcp://{}:29500", address), "--probes", "5"});
      command.arguments.insert(command.arguments.begin(),
                               {"nsenter", fmt::format("--net=/proc/{}/fd/{}", ::getpid(),
                                                       network.network_namespace(rank))});
      commands.push_back(std::move(command));
    }
    Ended ended = run_together(commands)[0];
    ended.out = unwrapped(ended.out);
    return ended;
  }
};

TEST_F(CheckCommand, senders_own_rules__are_not_called_the_receivers) {
  TestbedOptions options;
  const Testbed network = make(options);
  // UDP to rank 1 fails in the host of rank 0 itself; TCP goes on.
  ASSERT_EQ(
      run_in(network.network_namespace(0), {"ip", "rule", "add", "pref", "10", "to",
                                            network.address(1), "ipproto", "udp", "prohibit"}),
      "");
  const Ended ended = check(network);
  EXPECT_EQ(ended.exit_code, 1) << ended.error;
  EXPECT_THAT(ended.out, ::testing::ContainsRegex(
                             "FAILING: rank 0 .* -> rank 1 .*: the host of rank 0 itself refuses "
                             "to send .*: open outgoing UDP to rank 1"));
  EXPECT_THAT(ended.out, ::testing::ContainsRegex(
                             "FAILING: rank 1 .* -> rank 0 .*: probes arrive and no reply comes "
                             "back: the host of rank 0 itself refuses to send"));
  // No figure of a flood beside "NO".
  EXPECT_THAT(ended.out, Not(HasSubstr("0.00")));
}

TEST_F(CheckCommand, mtu_black_hole__is_a_line_where_jobs_run_with_smaller_packets) {
  TestbedOptions options;
  const Testbed network = make(options);
  // The bridge's port of rank 1 drops longer packets in both directions, without a word.
  ASSERT_EQ(run_in(network.hub(), {"ip", "link", "set", "p1", "mtu", "1000"}), "");
  const Ended ended = check(network);
  EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
  EXPECT_THAT(ended.out,
              HasSubstr("# slots shrink to 704 bytes: rank 0 -> rank 1 carries packets"));
  EXPECT_THAT(ended.out, HasSubstr("# all 2 pairs work"));
}

TEST_F(CheckCommand, mtu_black_hole__below_the_smallest_packets_is_no_block) {
  TestbedOptions options;
  const Testbed network = make(options);
  ASSERT_EQ(run_in(network.hub(), {"ip", "link", "set", "p1", "mtu", "500"}), "");
  const Ended ended = check(network);
  EXPECT_EQ(ended.exit_code, 1) << ended.error;
  for (const char* pair : {"rank 0 .* -> rank 1", "rank 1 .* -> rank 0"}) {
    EXPECT_THAT(ended.out, ::testing::ContainsRegex(fmt::format(
                               "FAILING: {} .*: small packets pass, full ones do not: the path's "
                               "MTU is below 1500",
                               pair)));
  }
  EXPECT_THAT(ended.out, Not(HasSubstr("blocked")));
}

TEST_F(CheckCommand, tunnel_over_a_smaller_mtu__its_fragments_are_named) {
  TestbedOptions options;
  const Testbed network = make(options);
  for (Rank rank = 0; rank < 2; ++rank) {
    const auto in_rank = [&](std::vector<std::string> words) {
      return run_in(network.network_namespace(rank), std::move(words));
    };
    ASSERT_EQ(in_rank({"ip", "link", "set", "eth0", "mtu", "1000"}), "");
    const std::string made =
        in_rank({"ip", "link", "add", "vx0", "type", "vxlan", "id", "7", "local",
                 network.address(rank), "remote", network.address(1 - rank), "dstport", "4789"});
    if (!made.empty()) GTEST_SKIP() << "no VXLAN here: " << made;
    ASSERT_EQ(
        in_rank({"ip", "address", "add", fmt::format("10.99.0.{}/24", rank + 1), "dev", "vx0"}),
        "");
    ASSERT_EQ(in_rank({"ip", "link", "set", "vx0", "mtu", "1500", "up"}), "");
  }
  const Ended ended = check(network, "vx0", "10.99.0.1");
  EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
  EXPECT_THAT(ended.out, ::testing::ContainsRegex(
                             "# warning: the host of rank 0 cut [0-9]+ packets to rank 1 into "
                             "fragments: the network below vx0 "));
}

TEST_F(CheckCommand, flood__repeats_the_rate_of_the_links) {
  TestbedOptions options;
  options.rate = TestbedRate{.bits_per_second = 200'000'000};
  const std::regex cell("received \\(Gb/s\\) .* from 0 +- +([0-9.]+)");
  for (int attempt = 0; attempt < 3; ++attempt) {
    const Ended ended = check(make(options));
    EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
    std::smatch found;
    ASSERT_TRUE(std::regex_search(ended.out, found, cell)) << ended.out;
    EXPECT_NEAR(std::stod(found[1]), 0.19, 0.03) << ended.out;
  }
}

}  // namespace
}  // namespace tarpon::test::check_command_test
