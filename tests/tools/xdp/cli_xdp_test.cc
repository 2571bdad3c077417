// AF_XDP as a user meets it: jobs on the testbed, ranks that are killed, traffic of others beside.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/support/child_program.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/namespaces/testbed.h"
#include "transport/clock.h"
#include "xdp/attached.h"
#include "xdp/interface.h"
#include "xdp/program.h"

namespace tarpon::test::cli_xdp_test {
namespace {

using ::testing::HasSubstr;

class CliXdp : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto probe = make_network_namespaces(1); !probe) {
      GTEST_SKIP() << probe.error().message;
    }
  }

  /// `command` in the namespace of a host of `network`.
  static Command on(const Testbed& network, Rank host, Command command) {
    command.arguments.insert(command.arguments.begin(),
                             {"nsenter", fmt::format("--net=/proc/{}/fd/{}", ::getpid(),
                                                     network.network_namespace(host))});
    return command;
  }

  /// Rank r on host r / per_host; they run until somebody ends them, or `extra` does.
  static Command rank(const Testbed& network, Rank number, int world, int per_host,
                      const std::vector<std::string>& extra) {
    const auto host = static_cast<Rank>(number / per_host);
    Command command =
        tool({"allreduce", "--datapath", "xdp", "--rank", std::to_string(number), "--world-size",
              std::to_string(world), "--interface", "eth0", "--rendezvous",
              fmt::format("tcp://{}:29500", network.address(0)), "-b", "64K", "-e", "64K"});
    command.arguments.insert(command.arguments.end(), extra.begin(), extra.end());
    return on(network, host, command);
  }

  static Testbed make(std::uint32_t hosts, int queues = 1) {
    TestbedOptions options;
    options.ranks = hosts;
    options.transmit_queues = options.receive_queues = queues;
    auto made = Testbed::create(options);
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
  }

  /// Name of the XDP program on a host's interface; empty when there is none.
  static std::string attached(const Testbed& network, Rank host) {
    std::string found;
    const auto done = in_network_namespace(network.network_namespace(host), [&]() -> Result<void> {
      auto program = xdp::attached_to(*xdp::interface_index("eth0"));
      if (!program) return fail(program.error());
      if (*program) found = (*program)->name;
      return {};
    });
    EXPECT_TRUE(done) << done.error().message;
    return found;
  }

  /// The kernel lets go of a killed process's program a little later.
  static bool goes(const Testbed& network, Rank host) {
    const Time end = monotonic_now() + kHang;
    while (!attached(network, host).empty() && monotonic_now() < end) ::usleep(1000);
    return attached(network, host).empty();
  }
};

TEST_F(CliXdp, report__says_which_datapath_and_why) {
  const ScratchDirectory directory;
  const std::string file = directory.path() + "/report.json";
  const Ended ended = run(tool({"allreduce", "--local-ranks", "3", "--net", "veth", "--datapath",
                                "xdp", "-b", "64K", "-e", "64K", "--json", file}));
  ASSERT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(unwrapped(ended.out),
              HasSubstr("# datapath: all ranks xdp: asked for: copy mode on eth0, queue 0"));
  std::ifstream stream(file);
  const auto json = nlohmann::json::parse(stream);
  for (const auto& each : json["config"]["ranks"]) EXPECT_EQ(each["datapath"], "xdp");
  EXPECT_EQ(json["config"]["integrity"], "crc32c");
  EXPECT_EQ(json["results"].back()["datapath"], "xdp");
  EXPECT_EQ(json["results"].back()["nwrong"], 0);
}

TEST_F(CliXdp, check__probes_over_af_xdp) {
  const Ended ended =
      run(tool({"check", "--local-ranks", "2", "--net", "veth", "--datapath", "xdp"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("# datapath: all ranks xdp"));
}

TEST_F(CliXdp, busy_poll__says_when_it_has_no_effect) {
  const Ended ended = run(tool({"allreduce", "--local-ranks", "2", "--net", "veth", "--datapath",
                                "xdp", "--busy-poll", "-b", "64K", "-e", "64K"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(unwrapped(ended.out), HasSubstr("busy polling without effect"));
}

TEST_F(CliXdp, loopback__is_refused_in_one_line) {
  const Ended ended = run(tool({"allreduce", "--local-ranks", "2", "--datapath", "xdp"}));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("native XDP"));
}

TEST_F(CliXdp, tcp__goes_on_beside_a_job) {
  const Ended ended = run(tool({"allreduce", "--local-ranks", "2", "--net", "veth", "--datapath",
                                "xdp", "--background", "2", "-b", "64K", "-e", "64K", "-n", "50"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("2 TCP flows carried "));
  EXPECT_EQ(ended.out.find("carried 0.00"), std::string::npos) << ended.out;
}

TEST_F(CliXdp, ping__is_answered_beside_a_job) {
  const Testbed network = make(2);
  Process first(rank(network, 0, 2, 1, {"-n", "1000000000"}));
  Process second(rank(network, 1, 2, 1, {"-n", "1000000000"}));
  ASSERT_TRUE(first.says("(elements)")) << first.wait(0ms).error;
  EXPECT_EQ(attached(network, 1), "tarpon_xdp");
  Command ping;
  ping.arguments = {"ping", "-c", "3", "-i", "0.2", "-W", "5", network.address(1)};
  const Ended ended = run(on(network, 0, ping));
  EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
}

TEST_F(CliXdp, killed__rank_leaves_nothing_and_the_next_start_works) {
  const Testbed network = make(2);
  {
    Process first(rank(network, 0, 2, 1, {"-n", "1000000000", "--deadline", "2s"}));
    Process second(rank(network, 1, 2, 1, {"-n", "1000000000", "--deadline", "2s"}));
    ASSERT_TRUE(first.says("(elements)")) << first.wait(0ms).error;
    ::kill(second.pid(), SIGKILL);
    second.wait();
    const Ended ended = first.wait();
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_FALSE(ended.hung);
    EXPECT_THAT(ended.error, HasSubstr("rank 1"));
  }
  EXPECT_TRUE(goes(network, 0));
  EXPECT_TRUE(goes(network, 1));
  for (const Ended& ended :
       run_together({rank(network, 0, 2, 1, {"-n", "5"}), rank(network, 1, 2, 1, {"-n", "5"})})) {
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
  }
}

TEST_F(CliXdp, killed__rank_that_attached_takes_nothing_from_the_others) {
  const Testbed network = make(2, 2);
  Process first(rank(network, 0, 2, 1, {"-n", "1000000000", "--deadline", "2s"}));
  Process owner(rank(network, 1, 2, 1, {"-n", "1000000000", "--deadline", "2s"}));
  ASSERT_TRUE(first.says("(elements)")) << first.wait(0ms).error;
  std::optional<xdp::Program> other;  // as another job on the same interface
  const auto joined = in_network_namespace(network.network_namespace(1), [&]() -> Result<void> {
    auto program = xdp::Program::use(*xdp::interface_index("eth0"), xdp::AttachMode::native);
    if (!program) return fail(program.error());
    other.emplace(std::move(*program));
    return {};
  });
  ASSERT_TRUE(joined) << joined.error().message;
  EXPECT_FALSE(other->attached_here());
  ::kill(owner.pid(), SIGKILL);
  owner.wait();
  first.wait();
  EXPECT_EQ(attached(network, 1), "tarpon_xdp");
  EXPECT_TRUE(goes(network, 0));
  for (const Ended& ended :
       run_together({rank(network, 0, 2, 1, {"-n", "5"}), rank(network, 1, 2, 1, {"-n", "5"})})) {
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
  }
  other.reset();
  EXPECT_TRUE(goes(network, 1));
}

}  // namespace
}  // namespace tarpon::test::cli_xdp_test
