// Slots on paths that carry less than the interfaces say: namespaces behind a router, with a link
// of its own for each direction, and behind a bridge.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/namespaces/testbed.h"
#include "tools/system/subprocess.h"

namespace tarpon::path_network_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Two ranks, each on a host: their communicators, or why there is none.
struct Pair {
  std::unique_ptr<Communicator> ranks[2];
  std::string errors[2];
};

Pair connect(const int (&hosts)[2], const std::string& meeting, Datapath datapath) {
  Pair pair;
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto done = in_network_namespace(hosts[rank], [&]() -> Result<void> {
        auto options = CommunicatorOptions::for_rank(rank, 2, meeting);
        options.rendezvous.timeout = 10s;
        options.interface = "eth0";
        options.datapath = datapath;
        auto made = Communicator::connect(options);
        if (!made) return fail(made.error());
        pair.ranks[rank] = std::move(*made);
        return {};
      });
      if (!done) pair.errors[rank] = done.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return pair;
}

/// Both ranks have slots of `bytes`, and calls whose every packet is full end well.
void expect_slots(const Pair& pair, std::uint32_t bytes, const std::string& reason) {
  ASSERT_TRUE(pair.ranks[0] && pair.ranks[1]) << pair.errors[0] << "\n" << pair.errors[1];
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Communicator& communicator = *pair.ranks[rank];
      EXPECT_EQ(communicator.slot_bytes(), bytes);
      EXPECT_EQ(communicator.shrunk_slots().empty(), reason.empty());
      EXPECT_THAT(communicator.shrunk_slots(), HasSubstr(reason));
      std::vector<float> values(200'000, static_cast<float>(rank + 1));
      const auto report = communicator.allreduce({.input = values.data(),
                                                  .output = values.data(),
                                                  .count = values.size(),
                                                  .deadline = 20s});
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->status, Status::complete) << report->detail;
      EXPECT_EQ(values, std::vector<float>(values.size(), 3));
      EXPECT_TRUE(communicator.close(10s));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Host 0 at 10.7.0.2 and host 1 at 10.7.1.2, each at eth0, on a router. What goes to a host takes
/// another link than what comes from it.
class RoutedPaths : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = make_network_namespaces(3);
    if (!made) GTEST_SKIP() << made.error().message;
    namespaces_ = std::move(*made);
  }

  /// `interface`: MTU of both hosts' eth0. `to[h]`: of the way to host h. `of_host_1`: where its
  /// eth0 has another.
  Pair connect(int interface, const int (&to)[2], Datapath datapath = Datapath::automatic,
               std::optional<int> of_host_1 = std::nullopt) {
    run(kRouter, "link set lo up\n");
    for (std::size_t host = 0; host < 2; ++host) {
      const std::string there = fmt::format("/proc/{}/fd/{}", ::getpid(), namespaces_[host].get());
      run(kRouter,
          fmt::format("link add from{0} mtu {1} type veth peer name eth0 mtu {1} netns {3}\n"
                      "link add to{0} mtu {2} type veth peer name back mtu {2} netns {3}\n"
                      "address add 10.7.{0}.1/24 dev from{0}\naddress add 10.8.{0}.1/24 dev to{0}\n"
                      "link set from{0} up\nlink set to{0} up\n",
                      host, host == 1 ? of_host_1.value_or(interface) : interface, to[host],
                      there));
      run(host, fmt::format("link set lo up\naddress add 10.7.{0}.2/24 dev eth0\n"
                            "address add 10.8.{0}.2/24 dev back\nlink set eth0 up\n"
                            "link set back up\nroute add default via 10.7.{0}.1\n",
                            host));
      run(kRouter, fmt::format("route add 10.7.{0}.2/32 via 10.8.{0}.2\n", host));
      shell(host, "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done");
    }
    shell(kRouter,
          "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done; "
          "echo 1 > /proc/sys/net/ipv4/ip_forward");
    return path_network_test::connect({namespaces_[0].get(), namespaces_[1].get()},
                                      "10.7.0.2:29500", datapath);
  }

 private:
  static constexpr std::size_t kRouter = 2;

  void run(std::size_t where, const std::string& batch) {
    const auto done = run_subprocess({{"ip", "-batch", "-"}, batch, namespaces_[where].get()});
    ASSERT_TRUE(done) << done.error().message;
  }
  void shell(std::size_t where, const std::string& command) {
    const auto done = run_subprocess({{"sh", "-c", command}, "", namespaces_[where].get()});
    ASSERT_TRUE(done) << done.error().message;
  }

  std::vector<FileDescriptor> namespaces_;
};

TEST_F(RoutedPaths, healthy__full_slots_and_no_word) {
  expect_slots(connect(1500, {1500, 1500}), 1408, "");
}

TEST_F(RoutedPaths, one_direction__shrinks_both) {
  expect_slots(connect(1500, {1500, 1400}), 1280,
               "slots shrink to 1280 bytes: rank 0 -> rank 1 carries packets of 1372 bytes and "
               "none of 1436 (interface MTU 1500)");
}

TEST_F(RoutedPaths, both_directions__the_smaller_counts) {
  expect_slots(connect(1500, {1280, 1400}), 1152,
               "rank 1 -> rank 0 carries packets of 1244 bytes and none of 1308 (interface MTU "
               "1500); 1 more pair carries no full packets");
}

TEST_F(RoutedPaths, jumbo_frames_with_1500_between) {
  expect_slots(connect(9000, {9000, 1500}), 1408,
               "rank 0 -> rank 1 carries packets of 1500 bytes and none of 2012 (interface MTU "
               "9000)");
}

TEST_F(RoutedPaths, interfaces_that_differ__are_named) {
  expect_slots(connect(9000, {9000, 9000}, Datapath::automatic, 1400), 1280,
               "slots shrink to 1280 bytes: the interface of rank 1 has MTU 1400, that of rank 0 "
               "MTU 9000");
}

TEST_F(RoutedPaths, mmsg__finds_the_same) {
  expect_slots(connect(9000, {1400, 9000}, Datapath::mmsg), 1280, "rank 1 -> rank 0 carries");
}

TEST_F(RoutedPaths, least_mtu__still_connects) {
  expect_slots(connect(1500, {576, 576}), TARPON_MIN_PAYLOAD,
               "carries packets of 540 bytes and none of 796");
}

TEST_F(RoutedPaths, least_mtu_of_interfaces__connects_too) {
  expect_slots(connect(576, {576, 576}), TARPON_MIN_PAYLOAD, "");
}

TEST_F(RoutedPaths, below_the_least_mtu__fails_on_all_ranks_naming_pair_and_direction) {
  const Pair pair = connect(1500, {1500, 500});
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(pair.ranks[rank]);
    EXPECT_THAT(pair.errors[rank],
                AllOf(HasSubstr("rank 0 ("), HasSubstr(", 10.7.0.2) -> rank 1 ("),
                      HasSubstr(", 10.7.1.2): only packets below 540 bytes arrive"),
                      HasSubstr("raise the path's MTU"), HasSubstr("`tarpon check`")));
  }
}

class BridgedPaths : public ::testing::TestWithParam<Datapath> {
 protected:
  void SetUp() override {
    const auto probe = make_network_namespaces(1);
    if (!probe) GTEST_SKIP() << probe.error().message;
  }

  static Pair connect(const Testbed& network) {
    return path_network_test::connect({network.network_namespace(0), network.network_namespace(1)},
                                      network.address(0) + ":29500", GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Datapaths, BridgedPaths,
                         ::testing::Values(Datapath::mmsg, Datapath::uring, Datapath::xdp),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(BridgedPaths, a_port_of_the_bridge__that_drops_without_a_word) {
  const auto network = Testbed::create({});
  ASSERT_TRUE(network) << network.error().message;
  const auto set = run_subprocess({{"ip", "link", "set", "p1", "mtu", "1400"}, "", network->hub()});
  ASSERT_TRUE(set) << set.error().message;
  const Pair pair = connect(*network);
  expect_slots(pair, 1280, "slots shrink to 1280 bytes");
  EXPECT_EQ(pair.ranks[0]->ranks()[1].datapath, name(GetParam()));
}

TEST(BridgedPath, control_connections__pass_where_full_segments_are_lost_without_a_word) {
  const auto network = Testbed::create({});
  if (!network) GTEST_SKIP() << network.error().message;
  for (const auto& [mtu, slot] : {std::pair{"576", TARPON_MIN_PAYLOAD}, std::pair{"350", 0u}}) {
    const auto set = run_subprocess({{"ip", "link", "set", "p1", "mtu", mtu}, "", network->hub()});
    ASSERT_TRUE(set) << set.error().message;
    const Pair pair = connect({network->network_namespace(0), network->network_namespace(1)},
                              network->address(0) + ":29500", Datapath::automatic);
    if (slot > 0) {
      expect_slots(pair, slot, "carries packets of 540 bytes and none of 796");
    } else {
      EXPECT_THAT(pair.errors[0], HasSubstr("only packets below 540 bytes arrive"));
      EXPECT_EQ(pair.errors[0], pair.errors[1]);
    }
  }
}

TEST_P(BridgedPaths, losses__shrink_nothing) {
  TestbedOptions options;
  options.loss = TestbedLoss{.probability = 0.05, .seed = 3};
  const auto network = Testbed::create(options);
  ASSERT_TRUE(network) << network.error().message;
  expect_slots(connect(*network), 1408, "");
}

}  // namespace
}  // namespace tarpon::path_network_test
