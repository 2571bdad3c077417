// The C interface of a grid of few ranks, whose hosts are given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "collectives/c_api/handles.h"
#include "tests/collectives/grid/grid_job.h"

namespace tarpon::grid_c_api_test {
namespace {

using namespace testing_support;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000;

std::vector<std::uint32_t> list_of(const tarpon_report* report, std::uint32_t which) {
  std::vector<std::uint32_t> ranks(8);
  std::uint32_t count = 0;
  EXPECT_EQ(tarpon_report_ranks(report, which, ranks.data(), 8, &count), TARPON_OK);
  ranks.resize(count);
  return ranks;
}

/// The ranks of host 1 begin when those of host 0 have ended their call.
TEST(GridCApiTest, late_ranks__by_host_in_the_mask_and_by_rank_in_the_list) {
  Grid grid = connect_grid({0, 1, 0, 1});
  ASSERT_EQ(grid.size(), 4u);
  std::vector<tarpon_communicator> handles(4);
  for (Rank rank = 0; rank < 4; ++rank) handles[rank].communicator = std::move(grid[rank]);
  std::atomic<int> ended = 0;
  on_all(4, [&](Rank rank) {
    tarpon_communicator* const job = &handles[rank];
    EXPECT_EQ(tarpon_mask_bit(job, 3), 1u);
    EXPECT_EQ(tarpon_mask_bit(job, 2), 0u);
    EXPECT_EQ(tarpon_mask_bit(job, 4), UINT32_MAX);
    std::vector<float> values(100, 1.0f);
    tarpon_arguments call{};
    call.size = sizeof call;
    call.input = call.output = values.data();
    call.count = values.size();
    call.mode = TARPON_BOUNDED;
    call.deadline_us = 20 * kSecond;
    call.bound_us = 50'000;
    while (rank == 1 && ended < 2) std::this_thread::sleep_for(1ms);
    tarpon_report* report = nullptr;
    ASSERT_EQ(tarpon_allreduce(job, &call, &report), TARPON_OK) << tarpon_error_text();
    ++ended;
    tarpon_summary summary{};
    summary.size = sizeof summary;
    ASSERT_EQ(tarpon_report_summary(report, &summary), TARPON_OK);
    if (rank % 2 == 0) {
      EXPECT_EQ(summary.late_ranks, 2u);
      EXPECT_THAT(list_of(report, TARPON_LATE_RANKS), ElementsAre(1, 3));
      EXPECT_THAT(list_of(report, TARPON_BLAMED), ElementsAre());
      tarpon_loss loss{};
      loss.size = sizeof loss;
      EXPECT_EQ(tarpon_report_loss(report, &loss), TARPON_OK);
      EXPECT_EQ(loss.late_ranks, 2u);
      std::uint32_t one = 9, count = 0;
      EXPECT_EQ(tarpon_report_ranks(report, TARPON_LATE_RANKS, &one, 1, &count), TARPON_OK);
      EXPECT_EQ(one, 1u);
      EXPECT_EQ(count, 2u);
      EXPECT_EQ(tarpon_report_ranks(report, 4, &one, 1, &count), TARPON_ERROR_INVALID_ARGUMENT);
      EXPECT_EQ(tarpon_report_ranks(report, 0, nullptr, 1, &count), TARPON_ERROR_INVALID_ARGUMENT);
    }
    tarpon_report_free(report);
  });
}

TEST(GridCApiTest, what_is_not_there__is_refused) {
  Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  tarpon_communicator job{.communicator = std::move(grid[0])};
  const std::uint32_t members[] = {0, 1};
  tarpon_communicator* part = nullptr;
  EXPECT_EQ(tarpon_split(&job, members, 2, 1, kSecond, &part), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("split: a job of more than 64 ranks has none"));
}

}  // namespace
}  // namespace tarpon::grid_c_api_test
