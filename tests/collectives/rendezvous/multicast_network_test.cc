// Jobs that multicast: on a bridge that carries it, on one that does not, and where it cannot be.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "tests/support/testbed_network.h"
#include "tools/namespaces/network_namespace.h"

namespace tarpon::multicast_network_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Runs `run` for each rank, in a thread of its own and its own namespace.
void for_each_rank(const Testbed& testbed, const std::function<Result<void>(Rank)>& run) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < testbed.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto done =
          in_network_namespace(testbed.network_namespace(rank), [&] { return run(rank); });
      EXPECT_TRUE(done) << "rank " << rank << ": " << done.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// A job on a testbed whose ranks ask for multicast.
class MulticastNetworkTest : public test::TestbedTest {
 protected:
  void connect(std::uint32_t ranks, Datapath datapath, const std::string& of_bridge = "") {
    job_.clear();
    testbed_.reset();
    TestbedOptions options;
    options.ranks = ranks;
    testbed_.emplace(test::make(options));
    if (!of_bridge.empty()) {
      ASSERT_EQ(test::run_in(testbed_->hub(), {"sh", "-c", of_bridge}), "");
    }
    job_.resize(ranks);
    for_each_rank(*testbed_, [&](Rank rank) -> Result<void> {
      auto options = CommunicatorOptions::for_rank(rank, ranks, testbed_->address(0) + ":29500");
      options.rendezvous.timeout = 20s;
      options.interface = "eth0";
      options.datapath = datapath;
      options.multicast = true;
      auto made = Communicator::connect(options);
      if (!made) return fail(made.error());
      job_[rank] = std::move(*made);
      return {};
    });
    for (const auto& one : job_) ASSERT_TRUE(one);
  }

  /// Every rank adds up `count` floats, and has sent this share of them, headers included.
  std::vector<double> call(const AllreduceArguments& arguments, std::size_t count) {
    std::vector<double> shares(job_.size());
    for_each_rank(*testbed_, [&](Rank rank) -> Result<void> {
      Communicator& communicator = *job_[rank];
      std::vector<float> values(count, static_cast<float>(rank + 1));
      AllreduceArguments mine = arguments;
      mine.input = mine.output = values.data();
      mine.count = count;
      mine.deadline = 20s;
      const std::uint64_t before = communicator.port_statistics().tx_bytes;
      const auto report = communicator.allreduce(mine);
      if (!report) return fail(report.error());
      EXPECT_EQ(report->status, Status::complete) << report->detail;
      const auto sum = static_cast<float>(job_.size() * (job_.size() + 1) / 2);
      for (const float value : values) {
        if (std::abs(value - sum) > 1e-3F) return fail(Error::Code::io, "a wrong sum");
      }
      const std::uint64_t sent = communicator.port_statistics().tx_bytes - before;
      shares[rank] = static_cast<double>(sent) / static_cast<double>(4 * count);
      return {};
    });
    return shares;
  }

  void close() {
    for_each_rank(*testbed_, [&](Rank rank) { return job_[rank]->close(20s); });
  }

  std::optional<Testbed> testbed_;
  std::vector<std::unique_ptr<Communicator>> job_;
};

TEST_F(MulticastNetworkTest, bridge__one_packet_for_all_ranks) {
  for (const Datapath datapath : {Datapath::uring, Datapath::mmsg, Datapath::xdp}) {
    connect(4, datapath);
    for (const auto& one : job_) EXPECT_EQ(one->multicast(), "on");
    // All slots are within the initial credit. One by one they would be 1.5 buckets, and headers.
    for (const double share : call({}, 20'000)) EXPECT_LT(share, 1.35) << name(datapath);
    AllreduceArguments bounded;
    bounded.mode = Mode::bounded;
    bounded.bound = 5s;
    call(bounded, 300'000);
    call({}, 2'000'000);
    close();
  }
}

TEST_F(MulticastNetworkTest, bridge__that_does_not_flood_it) {
  connect(3, Datapath::automatic, "bridge link set dev p2 mcast_flood off");
  for (const auto& one : job_) {
    EXPECT_EQ(one->multicast(),
              "off: rank 2 hears no multicast of rank 0 and of 1 more: the network between them "
              "drops it");
  }
  call({}, 100'000);
  close();
}

TEST_F(MulticastNetworkTest, two_ranks__need_none) {
  connect(2, Datapath::automatic);
  EXPECT_THAT(job_[0]->multicast(), StartsWith("off: rank 0 has one peer only"));
  call({}, 1000);
  close();
}

TEST_F(MulticastNetworkTest, split__sends_one_by_one) {
  connect(4, Datapath::automatic);
  for_each_rank(*testbed_, [&](Rank rank) -> Result<void> {
    auto part = job_[rank]->split({0, 1, 2, 3}, 1, 10s);
    if (!part) return fail(part.error());
    float value = 1;
    const auto report =
        (*part)->allreduce({.input = &value, .output = &value, .count = 1, .deadline = 10s});
    if (!report) return fail(report.error());
    EXPECT_EQ(report->status, Status::complete) << report->detail;
    EXPECT_EQ(value, 4);
    return (*part)->close(10s);
  });
  close();
}

TEST(MulticastHostTest, ranks_of_one_host__say_why_not) {
  const std::string meeting = fmt::format("file://{}multicast_{}", testing::TempDir(), ::getpid());
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 3; ++rank) {
    threads.emplace_back([rank, &meeting] {
      auto options = CommunicatorOptions::for_rank(rank, 3, meeting);
      options.multicast = true;
      auto made = Communicator::connect(options);
      ASSERT_TRUE(made) << made.error().message;
      EXPECT_THAT((*made)->multicast(), HasSubstr("shares the network interfaces of rank"));
      float value = 1;
      const auto report =
          (*made)->allreduce({.input = &value, .output = &value, .count = 1, .deadline = 10s});
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(value, 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tarpon::multicast_network_test
