// What connect() finds where its caller names no network, on two hosts: network namespaces with a
// veth between them.
#include "collectives/driver/own_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "collectives/communicator.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/system/subprocess.h"

namespace tarpon::own_network_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMtu = 1400;  // as in many clouds

/// Two hosts at 10.7.0.1 and 10.7.0.2, and where to meet on the first.
class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = make_network_namespaces(2);
    if (!made) GTEST_SKIP() << made.error().message;
    hosts_ = std::move(*made);
    const std::string pid = std::to_string(::getpid());
    const std::string here = "/proc/" + pid + "/fd/" + std::to_string(hosts_[1].get());
    run(0, "link set lo up\nlink add va mtu 1400 type veth peer name vb mtu 1400 netns " + here +
               "\naddress add 10.7.0.1/24 dev va\nlink set va up\n");
    run(1, "link set lo up\naddress add 10.7.0.2/24 dev vb\nlink set vb up\n");
  }

  void run(int host, const std::string& batch) {
    const auto done = run_subprocess({{"ip", "-batch", "-"}, batch, hosts_[host].get()});
    ASSERT_TRUE(done) << done.error().message;
  }

  using Ranks = std::vector<std::unique_ptr<Communicator>>;

  /// Rank r connects on host r; errors by rank.
  std::vector<std::string> connect(const std::function<void(CommunicatorOptions&)>& change,
                                   Ranks& ranks) {
    ranks.resize(2);
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto done = in_network_namespace(hosts_[rank].get(), [&]() -> Result<void> {
          auto options = CommunicatorOptions::for_rank(rank, 2, "10.7.0.1:29500");
          options.rendezvous.timeout = 10s;
          change(options);
          auto made = Communicator::connect(options);
          if (!made) return fail(made.error());
          ranks[rank] = std::move(*made);
          return {};
        });
        if (!done) errors[rank] = done.error().message;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

  std::vector<FileDescriptor> hosts_;
};

TEST_F(TwoHosts, rank_size_and_rendezvous__are_enough) {
  Ranks ranks;
  const auto errors = connect([](CommunicatorOptions&) {}, ranks);
  ASSERT_TRUE(ranks[0] && ranks[1]) << errors[0] << "\n" << errors[1];
  for (Rank rank = 0; rank < 2; ++rank) {
    const RankInfo& info = ranks[0]->ranks()[rank];
    EXPECT_EQ(info.address, rank == 0 ? "10.7.0.1" : "10.7.0.2");
    EXPECT_EQ(info.interface, rank == 0 ? "va" : "vb");
    EXPECT_EQ(info.mtu, kMtu);
    EXPECT_EQ(info.driver, "veth");
  }
  std::vector<float> values[2] = {std::vector<float>(100'000, 1), std::vector<float>(100'000, 2)};
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      float* const data = values[rank].data();
      const auto report =
          ranks[rank]->allreduce({.input = data, .output = data, .count = values[rank].size()});
      EXPECT_EQ(report->status, Status::complete) << report->detail;
      EXPECT_TRUE(ranks[rank]->close(10s));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(values[0].back(), 3);
  EXPECT_EQ(values[0], values[1]);
}

TEST_F(TwoHosts, file__members_follow_the_address_in_it) {
  const std::string file = testing::TempDir() + "tarpon-hosts-" + std::to_string(::getpid());
  Ranks ranks;
  const auto errors = connect(
      [&file](CommunicatorOptions& options) {
        options.rendezvous.address = "file://" + file;
        if (options.rendezvous.rank == 0) options.interface = "va";
      },
      ranks);
  ASSERT_TRUE(ranks[0] && ranks[1]) << errors[0] << "\n" << errors[1];
  EXPECT_EQ(ranks[0]->ranks()[1].address, "10.7.0.2");
}

TEST_F(TwoHosts, every_address__needs_a_name) {
  std::string name;
  const auto change = [&name](CommunicatorOptions& options) {
    if (options.rendezvous.rank != 0) return;
    options.rendezvous.address = "0.0.0.0:29500";
    options.interface = name;
  };
  Ranks ranks;
  auto errors = connect(change, ranks);
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 0: no interface reaches other hosts"),
                               HasSubstr("TARPON_INTERFACE")));
  name = "va";
  errors = connect(change, ranks);
  ASSERT_TRUE(ranks[0] && ranks[1]) << errors[0] << "\n" << errors[1];
  EXPECT_EQ(ranks[1]->ranks()[0].address, "10.7.0.1");
}

/// The NIC is up and has an address, but its other end is down.
TEST_F(TwoHosts, no_carrier__is_refused_on_all_ranks_alike) {
  run(1,
      "link add dead type veth peer name end\naddress add 10.8.0.2/24 dev dead\n"
      "link set dead up\n");
  Ranks ranks;
  const auto change = [](CommunicatorOptions& options) {
    if (options.rendezvous.rank == 1) options.interface = "dead";
  };
  auto errors = connect(change, ranks);
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("rank 1: dead (named by interface) has no carrier"),
                    HasSubstr("set the other end of its link up"), HasSubstr("vb (10.7.0.2)")));
  EXPECT_EQ(errors[0], errors[1]);
}

TEST_F(TwoHosts, loopback_for_another_host__is_refused_on_all_ranks_alike) {
  Ranks ranks;
  const auto errors = connect(
      [](CommunicatorOptions& options) {
        if (options.rendezvous.rank == 1) options.address = "127.0.0.1";
      },
      ranks);
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("rank 1 on "), HasSubstr("has the address 127.0.0.1 (lo)"),
                    HasSubstr("which rank 0 on "), HasSubstr("cannot reach"),
                    HasSubstr("in another network namespace"), HasSubstr("TARPON_INTERFACE")));
  EXPECT_EQ(errors[0], errors[1]);
}

TEST_F(TwoHosts, rendezvous_on_loopback__is_given_as_the_reason) {
  Ranks ranks;
  const auto errors = connect(
      [](CommunicatorOptions& options) {
        options.rendezvous.address = "127.0.0.1:29500";
        options.rendezvous.timeout = 1s;
      },
      ranks);
  EXPECT_THAT(errors[0], HasSubstr("No other host reaches that loopback address"));
  EXPECT_THAT(errors[1], HasSubstr("That loopback address is on this host"));
}

TEST_F(TwoHosts, interface_that_is_not_there__is_told_to_all_ranks) {
  Ranks ranks;
  const auto errors = connect(
      [](CommunicatorOptions& options) {
        if (options.rendezvous.rank == 1) options.interface = "eth9";
      },
      ranks);
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1: interface eth9: no such interface"),
                               HasSubstr("vb (10.7.0.2)")));
  EXPECT_EQ(errors[0], errors[1]);
}

TEST_F(TwoHosts, given_values__are_kept) {
  Ranks ranks;
  const auto errors = connect(
      [](CommunicatorOptions& options) {
        options.mtu = 1300;
        options.driver = "mine";
      },
      ranks);
  ASSERT_TRUE(ranks[0] && ranks[1]) << errors[0] << "\n" << errors[1];
  EXPECT_EQ(ranks[0]->ranks()[1].mtu, 1300u);
  EXPECT_EQ(ranks[0]->ranks()[1].driver, "mine");
  EXPECT_EQ(ranks[0]->ranks()[1].interface, "vb");
}

// -- this host

TEST(OwnNetwork, fill_network__loopback_for_a_rendezvous_on_loopback) {
  auto options = CommunicatorOptions::for_rank(0, 2, "tcp://localhost:29500");
  const auto filled = rendezvous::fill_network(options, "127.0.1.1");
  ASSERT_TRUE(filled) << filled.error().message;
  EXPECT_EQ(options.interface, "lo");
  EXPECT_EQ(options.address, "127.0.0.1");
  EXPECT_GT(options.mtu, 1500u);
}

TEST(OwnNetwork, fill_network__whole_options_are_not_looked_up) {
  CommunicatorOptions options = CommunicatorOptions::for_rank(0, 2, "tcp://10.0.0.1:1");
  options.address = "192.0.2.1";
  options.interface = "nope7";
  options.mtu = 9000;
  EXPECT_TRUE(rendezvous::fill_network(options, "192.0.2.1"));
  EXPECT_EQ(options.address, "192.0.2.1");
  EXPECT_EQ(options.driver, "");
}

TEST(OwnNetwork, check_reachable__loopback_is_good_on_one_host) {
  std::vector<RankInfo> ranks(2);
  for (RankInfo& rank : ranks) {
    rank.address = "127.0.0.1";
    rank.network = "a";
  }
  EXPECT_TRUE(rendezvous::check_reachable(ranks));
  ranks[1].network = "b";
  ranks[1].host = "node-b";
  const auto refused = rendezvous::check_reachable(ranks);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("which rank 1 on node-b cannot reach"));
  EXPECT_EQ(refused.error().code, Error::Code::invalid_argument);
}

}  // namespace
}  // namespace tarpon::own_network_test
