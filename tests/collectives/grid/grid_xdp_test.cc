// A grid whose rails use AF_XDP: the ranks of a host divide the queues of its link. Needs root.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "collectives/datapath.h"
#include "tests/collectives/grid/grid_job.h"
#include "tests/support/testbed_network.h"

namespace tarpon::grid_test {
namespace {

using namespace testing_support;

constexpr std::uint32_t kRanks = 6;
constexpr std::uint32_t kPerHost = 3;

class GridXdpTest : public test::TestbedTest {};

TEST_F(GridXdpTest, ranks_of_a_host__take_queues_of_their_own) {
  TestbedOptions shape;
  shape.ranks = kRanks;
  shape.places.per_host = kPerHost;
  shape.transmit_queues = shape.receive_queues = 2 * kPerHost;
  const Testbed network = test::make(shape);
  const Grid grid = connect_grid({0, 0, 0, 1, 1, 1}, [&](CommunicatorOptions& options) {
    const Rank rank = options.rendezvous.rank;
    if (!network.enter(rank)) throw std::runtime_error("no way into the namespace");
    options.rendezvous.address = "tcp://" + network.address(0) + ":29500";
    options.address = network.address(rank);
    options.interface = network.interface();
    options.mtu = 1500;
    options.datapath = Datapath::xdp;
  });
  ASSERT_EQ(grid.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    const RankInfo& own = grid[rank]->ranks()[rank];
    EXPECT_EQ(own.datapath, "xdp");
    const int place = rank % static_cast<int>(kPerHost);
    EXPECT_THAT(own.datapath_reason,
                testing::HasSubstr(fmt::format("queue {} and {}", place, place + 3)));
    for (const std::size_t count : {std::size_t{17}, std::size_t{100'000}}) {
      std::vector<float> values = input(rank, count, 0);
      const auto report = grid[rank]->allreduce(in_place(values));
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->status, Status::complete) << report->detail;
      EXPECT_EQ(values, sum(kRanks, count, 0)) << count;
    }
    EXPECT_TRUE(grid[rank]->close(10s));
  });
}

}  // namespace
}  // namespace tarpon::grid_test
