// Verdicts of grids of few ranks, whose hosts are given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/collectives/grid/grid_job.h"

namespace tarpon::grid_agree_test {
namespace {

using namespace testing_support;
using testing::HasSubstr;

/// The verdicts of all ranks on one step, which are alike.
StepVerdict agreed(const Grid& grid, std::uint64_t step, const std::vector<LossReport>& reports,
                   Duration deadline = 30s) {
  std::vector<StepVerdict> verdicts(grid.size());
  on_all(static_cast<std::uint32_t>(grid.size()),
         [&](Rank rank) { verdicts[rank] = grid[rank]->agree(step, reports[rank], deadline); });
  for (const StepVerdict& one : verdicts) {
    EXPECT_TRUE(one.same(verdicts[0])) << one.detail;
    EXPECT_EQ(one.lost_fraction, verdicts[0].lost_fraction);
    EXPECT_EQ(one.reporters, verdicts[0].reporters);
    EXPECT_EQ(one.differing, verdicts[0].differing);
    EXPECT_EQ(one.detail, verdicts[0].detail);
  }
  return verdicts[0];
}

TEST(GridAgreeTest, worst_report__decides_for_all_ranks) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  std::vector<LossReport> reports(4);
  const StepVerdict applied = agreed(grid, 1, reports);
  EXPECT_EQ(applied.verdict, Verdict::apply) << applied.detail;
  EXPECT_EQ(applied.reporters, 3u);  // both hosts
  reports[3].lost_fraction = 0.2;
  const StepVerdict skipped = agreed(grid, 2, reports);
  EXPECT_EQ(skipped.verdict, Verdict::skip);
  EXPECT_EQ(skipped.lost_fraction, 0.2);
  EXPECT_THAT(skipped.detail, HasSubstr("20.00 %"));
  reports[3].lost_fraction = 0;
  reports[0].nonfinite = true;
  EXPECT_EQ(agreed(grid, 3, reports).verdict, Verdict::skip);
}

TEST(GridAgreeTest, digest__that_differs_on_a_rail_or_between_rails_is_told) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  std::vector<LossReport> reports(4);
  for (LossReport& report : reports) report.digest = 7;
  EXPECT_EQ(agreed(grid, 1, reports).differing, 0u);
  reports[3].digest = 8;
  EXPECT_EQ(agreed(grid, 2, reports).differing, 2u);  // host 1
  reports[1].digest = 8;
  EXPECT_EQ(agreed(grid, 3, reports).differing, 3u);  // rail 1 on both hosts
}

TEST(GridAgreeTest, rank_whose_sibling_does_not_come__halts) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    if (rank == 3) return;
    const StepVerdict verdict = grid[rank]->agree(1, {}, 500ms);
    EXPECT_EQ(verdict.step, 1u);
    if (rank == 2) {
      EXPECT_EQ(verdict.verdict, Verdict::halt);
      EXPECT_THAT(verdict.detail, HasSubstr("ranks of this host"));
    }
  });
}

}  // namespace
}  // namespace tarpon::grid_agree_test
