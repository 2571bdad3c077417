// Bounded calls of grids of few ranks, whose hosts are given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "tests/collectives/grid/grid_job.h"

namespace tarpon::grid_bounded_test {
namespace {

using namespace testing_support;
using testing::AnyOf;
using testing::ElementsAre;

AllreduceArguments bounded(std::vector<float>& values, std::uint32_t tag = 0) {
  AllreduceArguments call = in_place(values, tag);
  call.mode = Mode::bounded;
  return call;
}

TEST(GridBoundedTest, calls_without_loss__are_complete) {
  const Grid grid = connect_grid({0, 0, 1, 1, 2, 2});
  ASSERT_EQ(grid.size(), 6u);
  on_all(6, [&](Rank rank) {
    for (std::uint32_t round = 0; round < 5; ++round) {
      std::vector<float> values = input(rank, round == 3 ? 900'000 : 5000, round);
      const auto report = grid[rank]->allreduce(bounded(values));
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->status, Status::complete) << report->detail;
      EXPECT_EQ(report->mode, Mode::bounded);
      EXPECT_EQ(values, sum(6, values.size(), round));
    }
  });
}

/// The ranks of host 1 make the empty call when those of host 0 have ended it.
TEST(GridBoundedTest, empty_call_and_empty_slices__are_complete) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}}) {
    std::atomic<int> ended = 0;
    on_all(4, [&](Rank rank) {
      std::vector<float> values(count, 1.0f);
      while (count == 0 && rank >= 2 && ended < 2) std::this_thread::yield();
      const auto report = grid[rank]->allreduce(bounded(values));
      ++ended;
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->status, Status::complete) << count << ": " << report->detail;
      EXPECT_EQ(values, std::vector<float>(count, 4.0f));
    });
  }
}

TEST(GridBoundedTest, average__counts_all_ranks) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    std::vector<float> values(1000, static_cast<float>(rank * rank));
    AllreduceArguments call = bounded(values);
    call.function = ReduceOp::avg;
    expect_complete(grid[rank]->allreduce(call));
    EXPECT_EQ(values, std::vector<float>(1000, 14.0f / 4));
  });
}

/// The ranks of host 1 begin when those of host 0 have ended their call.
TEST(GridBoundedTest, late_rank__makes_its_host_late_and_no_other) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  std::atomic<int> ended = 0;
  on_all(4, [&](Rank rank) {
    std::vector<float> values(1000, 1.0f);
    expect_complete(grid[rank]->allreduce(in_place(values)));
    values.assign(1000, 1.0f);
    AllreduceArguments call = bounded(values);
    call.bound = 50ms;
    while (rank == 3 && ended < 2) std::this_thread::sleep_for(1ms);
    const auto report = grid[rank]->allreduce(call);
    ++ended;
    ASSERT_TRUE(report) << report.error().message;
    if (rank < 2) {
      EXPECT_EQ(report->status, Status::partial) << report->detail;
      EXPECT_THAT(report->late_ranks, ElementsAre(2, 3));
      EXPECT_EQ(report->mask(report->late_ranks), 2u);
      EXPECT_GE(report->lost_fraction, 0.5);  // more where the late host owns shards
    } else {
      EXPECT_EQ(report->status, Status::late_self) << report->detail;
    }
    expect_complete(grid[rank]->allreduce(in_place(values)));
  });
}

TEST(GridBoundedTest, lossy_rails__lose_what_the_report_says) {
  const Grid grid = connect_grid({0, 0, 1, 1}, [](CommunicatorOptions& options) {
    options.faults.loss = 0.2;
    options.mechanisms.repair = options.mechanisms.scatter_repair = false;
    options.mechanisms.rescale = Rescale::none;
    options.mechanisms.codec = CodecRule::off;
  });
  ASSERT_EQ(grid.size(), 4u);
  std::vector<std::vector<float>> results(4);
  std::vector<Report> reports(4);
  on_all(4, [&](Rank rank) {
    EXPECT_NE(grid[rank]->hosts().find("4 ranks on 2 hosts"), std::string::npos);
    results[rank].assign(400'000, 1.0f);
    AllreduceArguments call = bounded(results[rank]);
    call.bound = 200ms;
    const auto report = grid[rank]->allreduce(call);
    ASSERT_TRUE(report) << report.error().message;
    reports[rank] = *report;
  });
  for (const std::size_t host : {0u, 1u}) {
    // Both ranks of a host have the same output: what their two rails have.
    EXPECT_EQ(results[2 * host], results[2 * host + 1]);
    double present = 0;
    for (const float value : results[2 * host]) present += value;
    const double lost = (reports[2 * host].lost_fraction + reports[2 * host + 1].lost_fraction) / 2;
    EXPECT_NEAR(1 - present / (4 * 400'000.0), lost, 1e-6);
    EXPECT_GT(lost, 0);
  }
}

TEST(GridBoundedTest, nan__makes_its_slice_nan_on_all_ranks) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    std::vector<float> values(1000, 1.0f);
    if (rank == 3) values[0] = NAN;
    const auto report = grid[rank]->allreduce(bounded(values));
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->nonfinite, rank % 2 == 0);  // place 0 has the slice
    EXPECT_TRUE(std::isnan(values[0]));
    EXPECT_TRUE(std::isnan(values[300]));
    EXPECT_EQ(values[999], 4.0f);
  });
}

/// Bounded calls of a rank of host 0, until `over()`, and some more. Rank 0 says in `last` how many
/// there are in all.
template <typename Over>
void expect_results(Communicator& rank, std::atomic<std::uint32_t>& last, Over over) {
  for (std::uint32_t calls = 0; calls < last; ++calls) {
    if (rank.rank() == 0 && last == UINT32_MAX && over()) last = calls + 5;
    std::vector<float> values(1000, 1.0f);
    AllreduceArguments call = bounded(values, 1);
    call.bound = 20ms;
    call.deadline = 1s;
    const auto report = rank.allreduce(call);
    ASSERT_TRUE(report);
    ASSERT_THAT(report->status, AnyOf(Status::complete, Status::partial)) << report->detail;
  }
}

TEST(GridBoundedTest, host_that_is_evicted__is_told_and_the_others_go_on) {
  const Grid grid = connect_grid({0, 0, 1, 1}, [](auto& options) { options.retain_bytes = 1; });
  ASSERT_EQ(grid.size(), 4u);
  std::atomic<int> out = 0;
  std::atomic<std::uint32_t> last = UINT32_MAX;
  on_all(4, [&](Rank rank) {
    if (rank < 2) return expect_results(*grid[rank], last, [&] { return out == 2; });
    if (rank == 3) std::this_thread::sleep_for(3s);  // the others evict it after a second
    Status status = Status::complete;
    for (int calls = 0; calls < 1000 && status <= Status::late_self; ++calls) {
      std::vector<float> values(1000, 1.0f);
      const auto report = grid[rank]->allreduce(bounded(values, 1));
      ASSERT_TRUE(report);
      status = report->status;
    }
    EXPECT_EQ(status, Status::evicted);
    ++out;
  });
}

TEST(GridBoundedTest, host_that_is_late_beyond_the_deadline__is_out_and_the_others_go_on) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  std::atomic<int> out = 0;
  std::atomic<std::uint32_t> last = UINT32_MAX;
  on_all(3, [&](Rank rank) {  // rank 3 calls nothing
    if (rank < 2) return expect_results(*grid[rank], last, [&] { return out == 1; });
    for (int calls = 0; calls < 3; ++calls) {
      std::vector<float> values(1000, 1.0f);
      AllreduceArguments call = bounded(values, calls == 2 ? 7 : 1);
      call.deadline = 500ms;
      const auto report = grid[2]->allreduce(call);
      ASSERT_TRUE(report);
      EXPECT_EQ(report->status, Status::peer_late) << report->detail;
      EXPECT_NE(report->detail.find("3"), std::string::npos) << report->detail;
    }
    ++out;
  });
}

TEST(GridBoundedTest, host_that_has_lost_a_rank__leaves_the_others_to_go_on) {
  Grid grid = connect_grid({0, 0, 1, 1, 2, 2});
  ASSERT_EQ(grid.size(), 6u);
  on_all(6, [&](Rank rank) {
    std::vector<float> values(1000, 1.0f);
    expect_complete(grid[rank]->allreduce(in_place(values)));
  });
  grid[5].reset();  // without close(): dead to the others
  std::atomic<int> ended = 0;
  on_all(5, [&](Rank rank) {
    if (rank == 4) {
      std::vector<float> values(1000, 1.0f);
      const auto report = grid[4]->allreduce(bounded(values, 1));
      ASSERT_TRUE(report);
      EXPECT_EQ(report->status, Status::peer_dead) << report->detail;
      EXPECT_THAT(report->blamed, ElementsAre(5));
      EXPECT_NE(report->detail.find("rank 5"), std::string::npos) << report->detail;
      const auto later = grid[4]->allreduce(bounded(values, 2));
      ASSERT_TRUE(later);
      EXPECT_EQ(later->status, Status::peer_dead);
      ++ended;
      return;
    }
    while (ended == 0) std::this_thread::sleep_for(1ms);
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(1000, 1.0f);
      const auto report = grid[rank]->allreduce(bounded(values, 1));
      ASSERT_TRUE(report);
      EXPECT_EQ(report->status, Status::partial) << report->detail;
      for (const float value : values) {  // of 4 ranks, scaled; or in a shard of the lost host
        EXPECT_TRUE(value == 0 || std::abs(value - 6) < 0.001f) << value;
      }
      EXPECT_LT(std::count(values.begin(), values.end(), 0.0f), 500);
    }
    std::vector<float> values(1000, 1.0f);
    const auto exact = grid[rank]->allreduce(in_place(values, 3));
    ASSERT_TRUE(exact);
    EXPECT_THAT(exact->status, AnyOf(Status::peer_dead, Status::peer_left, Status::aborted))
        << exact->detail;
  });
}

}  // namespace
}  // namespace tarpon::grid_bounded_test
