// Grids in virtual time: every contribution is in a result once, or the report says that it lacks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/grid/grid_allreduce.h"
#include "tests/simulation/grid_sum.h"

namespace tarpon::grid_simulation_test {
namespace {

using namespace testing_support;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr FaultOptions kFaults{.loss = 0.05, .duplicate = 0.02, .reorder = 0.05, .corrupt = 0.01};

/// How bounded calls take losses.
struct LossRules {
  const char* name;
  Rescale rescale;
  bool repair;  // else what is lost stays lost

  Mechanisms mechanisms() const {
    Mechanisms mechanisms;
    mechanisms.repair = mechanisms.scatter_repair = repair;
    mechanisms.rescale = rescale;
    return mechanisms;
  }
};

TEST(GridSimulationTest, exact_calls_of_4x4__have_each_contribution_once_despite_faults) {
  for (const bool round_robin : {false, true}) {
    SimulatedGrid grid({.hosts = 4,
                        .places = 4,
                        .round_robin = round_robin,
                        .faults = kFaults,
                        .seed = round_robin ? 2u : 1u});
    std::vector<std::unique_ptr<GridSum<std::int64_t>>> sums;
    for (const std::uint64_t count : {0u, 1u, 17u, 999u, 9000u}) {
      const auto tag = static_cast<std::uint32_t>(sums.size() % 3);
      sums.push_back(std::make_unique<GridSum<std::int64_t>>(grid, count, tag, sums.size()));
      sums.back()->submit_all();
    }
    ASSERT_TRUE(grid.finish(10s));
    for (const auto& sum : sums) sum->expect_complete();
  }
}

TEST(GridSimulationTest, chunks_of_a_large_bucket__run_in_different_stages_at_a_time) {
  constexpr std::uint64_t kChunk = grid::GridAllreduce::kChunkBytes / sizeof(std::int64_t);
  SimulatedGrid grid({.hosts = 2, .places = 2, .seed = 3});
  GridSum<std::int64_t> sum(grid, 5 * kChunk + 3, 0);
  sum.submit_all();
  ASSERT_TRUE(grid.finish(10s));
  sum.expect_complete();
}

TEST(GridSimulationTest, calls_of_72_ranks__have_each_contribution_once) {
  SimulatedGrid grid({.hosts = 9, .places = 8, .seed = 4});
  GridSum<std::int64_t> exact(grid, 3000, 0);
  exact.submit_all();
  GridSum<double> bounded(grid, 6001, 1, 1);
  bounded.submit_all_bounded(20ms);
  ASSERT_TRUE(grid.finish(10s));
  exact.expect_complete();
  bounded.expect_complete();
}

TEST(GridSimulationTest, rank_that_comes_late_to_an_exact_call__is_waited_for) {
  SimulatedGrid grid({.hosts = 9, .places = 8, .faults = kFaults, .seed = 5});
  GridSum<std::int64_t> sum(grid, 1000, 0);
  for (Rank rank = 0; rank < 72; ++rank) {
    if (rank != 37) sum.submit(rank, sum.arguments(rank));
  }
  grid.after(300ms, [&] { sum.submit(37, sum.arguments(37)); });
  ASSERT_TRUE(grid.finish(10s));
  sum.expect_complete();
  EXPECT_GE(sum.report(0).elapsed, 300ms);
}

class GridLossTest : public testing::TestWithParam<LossRules> {};

TEST_P(GridLossTest, bounded_calls__lack_what_their_reports_say) {
  for (const auto& [hosts, places] : {std::pair{4u, 4u}, {9u, 8u}}) {
    SimulatedGrid grid({.hosts = hosts,
                        .places = places,
                        .mechanisms = GetParam().mechanisms(),
                        .faults = kFaults,
                        .seed = 6 + hosts});
    // A shard of a host has several packets.
    GridSum<double> sum(grid, std::uint64_t{hosts} * places * 500 + 7, 0);
    sum.submit_all_bounded(20ms);
    ASSERT_TRUE(grid.finish(10s));
    const double lost = sum.expect_what_reports_say(GetParam().rescale);
    EXPECT_EQ(lost > 0.02, !GetParam().repair) << lost;
    EXPECT_LE(sum.times().last, 25ms);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, GridLossTest,
                         testing::Values(LossRules{"plain", Rescale::none, false},
                                         LossRules{"weighed", Rescale::count, false},
                                         LossRules{"repaired", Rescale::count, true}),
                         [](const auto& rules) { return rules.param.name; });

TEST(GridSimulationTest, rank_that_comes_late_to_a_bounded_call__makes_its_host_late) {
  SimulatedGrid grid({.hosts = 4, .places = 4, .seed = 7});
  GridSum<double> sum(grid, 5000, 0);
  for (Rank rank = 0; rank < 16; ++rank) {
    if (rank != 6) sum.submit(rank, sum.bounded(rank, 20ms));
  }
  grid.after(100ms, [&] { sum.submit(6, sum.bounded(6, 20ms)); });
  ASSERT_TRUE(grid.finish(10s));
  EXPECT_GT(sum.expect_what_reports_say(Rescale::count), 0.25);
  for (Rank rank = 0; rank < 16; ++rank) {
    const Report& report = sum.report(rank);
    if (rank / 4 == 1) {
      EXPECT_EQ(report.status, Status::late_self) << report.detail;
    } else {
      EXPECT_EQ(report.status, Status::partial) << report.detail;
      EXPECT_THAT(report.late_ranks, ElementsAre(4, 5, 6, 7));
      EXPECT_LE(report.elapsed, 25ms);
    }
  }
  GridSum<double> next(grid, 5000, 0, 1);
  next.submit_all();
  ASSERT_TRUE(grid.finish(10s));
  next.expect_complete();
}

/// Rank 15 makes no call before its host is out.
TEST(GridSimulationTest, host_that_is_late_beyond_the_deadline__is_out_and_nobody_waits_for_it) {
  SimulatedGrid grid({.hosts = 4, .places = 4, .seed = 8});
  const auto submit = [](GridSum<double>& sum, Rank last) {
    for (Rank rank = 0; rank <= last; ++rank) {
      AllreduceArguments call = sum.bounded(rank, 20ms);
      call.deadline = 500ms;
      sum.submit(rank, call);
    }
  };
  GridSum<double> first(grid, 5000, 0), second(grid, 5000, 0, 1), third(grid, 5000, 1, 2);
  submit(first, 14);
  grid.after(510ms, [] {});  // until all have heard what comes of it
  ASSERT_TRUE(grid.finish(10s));
  submit(second, 14);
  ASSERT_TRUE(grid.finish(10s));
  submit(third, 15);
  ASSERT_TRUE(grid.finish(10s));
  for (Rank rank = 0; rank < 16; ++rank) {
    const Status status = rank < 12 ? Status::partial : Status::peer_late;
    for (const GridSum<double>* const sum : {&first, &second, &third}) {
      if (rank == 15 && sum != &third) continue;
      const Report& report = sum->report(rank);
      EXPECT_EQ(report.status, status) << rank << ": " << report.detail;
      if (sum != &first) {
        EXPECT_LE(report.elapsed, 1ms) << rank;
      }
    }
  }
  EXPECT_THAT(third.report(15).blamed, ElementsAre(15));
}

TEST(GridSimulationTest, abort__ends_the_calls_of_all_ranks_with_its_reason) {
  SimulatedGrid grid({.hosts = 9, .places = 8, .seed = 9});
  GridSum<std::int64_t> sum(grid, 1000, 0);
  for (Rank rank = 0; rank < 72; ++rank) {
    if (rank != 20) sum.submit(rank, sum.arguments(rank));
  }
  grid.after(1ms, [&] { grid.abort(20, "out of fuel"); });
  ASSERT_TRUE(grid.finish(10s));
  for (Rank rank = 0; rank < 72; ++rank) {
    if (rank == 20) continue;
    EXPECT_EQ(sum.report(rank).status, Status::aborted);
    EXPECT_THAT(sum.report(rank).blamed, ElementsAre(20)) << sum.report(rank).detail;
    EXPECT_THAT(sum.report(rank).detail, HasSubstr("out of fuel"));
  }
}

}  // namespace
}  // namespace tarpon::grid_simulation_test
