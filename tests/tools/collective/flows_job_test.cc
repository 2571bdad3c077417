// Jobs over a testbed that limits each UDP flow: ranks as threads of this process, each in a
// network namespace. A flow has 50 Mb/s, or 25 Mb/s where times are compared: links are slower than
// processors, also on a busy machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "collectives/communicator.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/namespaces/testbed.h"
#include "transport/clock.h"
#include "transport/endpoint.h"

namespace tarpon::flows_job_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kLarge = std::size_t{1} << 20;  // elements: 4 MiB, large enough for a trial
constexpr std::size_t kSmall = kLarge / 4;

class FlowsJobTest : public testing::TestWithParam<Datapath> {
 protected:
  void SetUp() override {
    const auto probe = make_network_namespaces(1);
    if (!probe) GTEST_SKIP() << probe.error().message;
  }

  void make_network(std::optional<TestbedLimit> limit) {
    TestbedOptions options;
    options.flow_limit = limit;
    auto made = Testbed::create(options);
    ASSERT_TRUE(made) << made.error().message;
    network_.emplace(std::move(*made));
  }

  CommunicatorOptions job_options(Rank rank, std::uint32_t flows) const {
    CommunicatorOptions options;
    options.rendezvous.rank = rank;
    options.rendezvous.world_size = 2;
    options.rendezvous.address = "tcp://" + network_->address(0) + ":29500";
    options.datapath = GetParam();
    options.address = network_->address(rank);
    options.interface = network_->interface();
    options.flows = flows;
    return options;
  }

  /// So many UDP ports, and as many of TCP, are to be had in the namespace of `rank`.
  Result<void> leave_ports(Rank rank, int ports) {
    return in_network_namespace(network_->network_namespace(rank), [ports]() -> Result<void> {
      std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
      range << "40000 " << 40000 + ports - 1 << std::endl;
      if (!range) return fail(Error::Code::io, "cannot narrow ip_local_port_range");
      return {};
    });
  }

  std::string address(Rank rank) const { return network_->address(rank); }
  Result<void> enter(Rank rank) const { return network_->enter(rank); }

  struct Outcome {
    std::vector<double> seconds;  // of rank 0's operations after the warm-up, sorted
    std::uint32_t flows = 0;      // of rank 0 at the end
    std::vector<RankInfo> ranks;
    double median() const { return seconds[seconds.size() / 2]; }
  };

  /// Two ranks that run `warm_up` + `operations` AllReduces of `elements` over so many flows, 0: by
  /// trial.
  Outcome run(std::uint32_t flows, std::size_t elements, int warm_up, int operations) {
    Outcome outcome;
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < 2; ++rank) {
      threads.emplace_back(
          [&, rank] { take_part(rank, flows, elements, warm_up, operations, outcome); });
    }
    for (std::thread& thread : threads) thread.join();
    std::sort(outcome.seconds.begin(), outcome.seconds.end());
    return outcome;
  }

 private:
  void take_part(Rank rank, std::uint32_t flows, std::size_t elements, int warm_up, int operations,
                 Outcome& outcome) {
    ASSERT_TRUE(network_->enter(rank));
    auto communicator = Communicator::connect(job_options(rank, flows));
    ASSERT_TRUE(communicator) << communicator.error().message;
    std::vector<float> values(elements);
    for (int i = 0; i < warm_up + operations; ++i) {
      std::fill(values.begin(), values.end(), static_cast<float>(rank + 1));
      AllreduceArguments arguments;
      arguments.input = arguments.output = values.data();
      arguments.count = values.size();
      arguments.deadline = 30s;
      const Time begin = monotonic_now();
      const auto report = (*communicator)->allreduce(arguments);
      ASSERT_TRUE(report) << report.error().message;
      ASSERT_EQ(report->status, Status::complete) << report->detail;
      ASSERT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return v == 3; }));
      if (rank != 0 || i < warm_up) continue;
      const Duration taken = monotonic_now() - begin;
      outcome.seconds.push_back(std::chrono::duration<double>(taken).count());
    }
    if (rank == 0) {
      outcome.flows = (*communicator)->flows();
      outcome.ranks = (*communicator)->ranks();
    }
    EXPECT_TRUE((*communicator)->close(20s));
  }

  std::optional<Testbed> network_;
};

TEST_P(FlowsJobTest, four_carry_three_times_as_much_where_each_is_limited) {
  make_network(TestbedLimit{.bits_per_second = 25'000'000});
  const Outcome one = run(1, kSmall, 3, 5);
  const Outcome four = run(4, kSmall, 3, 5);
  ASSERT_EQ(one.seconds.size(), 5u);
  ASSERT_EQ(four.seconds.size(), 5u);
  EXPECT_GT(one.median(), 3 * four.median()) << "one flow takes " << one.median() << " s";
  EXPECT_EQ(four.flows, 4u);
}

TEST_P(FlowsJobTest, by_trial_four_are_taken_where_each_is_limited) {
  make_network(TestbedLimit{.bits_per_second = 50'000'000});
  EXPECT_EQ(run(0, kLarge, 0, 10).flows, 4u);
}

TEST_P(FlowsJobTest, by_trial_one_will_do_for_a_rank_that_the_kernel_refuses_more) {
  make_network(std::nullopt);
  ASSERT_TRUE(leave_ports(1, 3));  // four flows need four
  const Outcome outcome = run(0, kLarge, 0, 10);
  ASSERT_EQ(outcome.ranks.size(), 2u);
  EXPECT_EQ(outcome.ranks[0].flow_ports.size(), kTrialFlows - 1);
  EXPECT_EQ(outcome.ranks[1].flow_ports.size(), 0u);
  EXPECT_THAT(outcome.ranks[0].datapath_reason, Not(HasSubstr("one flow")));
  EXPECT_THAT(outcome.ranks[1].datapath_reason,
              HasSubstr("; one flow: flow 4 of 4: UDP " + address(1) +
                        ":0: no port is free; widen net.ipv4.ip_local_port_range"));
}

TEST_P(FlowsJobTest, asked_for_flows_that_cannot_be_had_are_an_error_on_all_ranks) {
  make_network(std::nullopt);
  ASSERT_TRUE(leave_ports(1, 3));
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 2; ++rank) {
    threads.emplace_back([this, rank] {
      ASSERT_TRUE(enter(rank));
      const auto refused = Communicator::connect(job_options(rank, 4));
      ASSERT_FALSE(refused);
      EXPECT_THAT(refused.error().message, HasSubstr("rank 1: flow 4 of 4: UDP " + address(1)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(live, FlowsJobTest,
                         testing::Values(Datapath::mmsg, Datapath::uring, Datapath::xdp),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace tarpon::flows_job_test
