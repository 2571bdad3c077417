// Collectives beside AllReduce in grids of few ranks, whose hosts are given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/collectives/grid/grid_job.h"

namespace tarpon::grid_exchange_test {
namespace {

using namespace testing_support;
using testing::AnyOf;
using testing::HasSubstr;

const std::vector<int> kRoundRobin = {0, 1, 0, 1, 0, 1};
constexpr std::uint32_t kRanks = 6;

/// Elements [first, first + count) of what rank `from` has.
std::vector<std::int32_t> numbers(Rank from, std::uint64_t first, std::uint64_t count) {
  std::vector<std::int32_t> values(count);
  std::iota(values.begin(), values.end(), static_cast<std::int32_t>(1000 * from + first));
  return values;
}

TEST(GridExchangeTest, broadcast__from_each_root) {
  const Grid grid = connect_grid(kRoundRobin);
  ASSERT_EQ(grid.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    for (Rank root = 0; root < kRanks; ++root) {
      const std::uint64_t count = root == 4 ? 100'000 : 10;
      std::vector<std::int32_t> values = numbers(rank, 0, count);
      const CollectiveArguments call{.collective = Collective::broadcast,
                                     .input = rank == root ? values.data() : nullptr,
                                     .output = values.data(),
                                     .count = count,
                                     .root = root,
                                     .type = DataType::int32};
      const auto report = grid[rank]->collective(call);
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->status, Status::complete) << report->detail;
      EXPECT_EQ(report->collective, Collective::broadcast);
      EXPECT_EQ(values, numbers(root, 0, count));
    }
  });
}

std::vector<std::int32_t> gathered(const std::vector<std::uint64_t>& counts) {
  std::vector<std::int32_t> all;
  for (Rank rank = 0; rank < counts.size(); ++rank) {
    const auto part = numbers(rank, 0, counts[rank]);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(GridExchangeTest, all_gather__of_parts_of_any_size_also_in_place) {
  const Grid grid = connect_grid(kRoundRobin);
  ASSERT_EQ(grid.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    for (const std::vector<std::uint64_t>& counts :
         {std::vector<std::uint64_t>(kRanks, 5), std::vector<std::uint64_t>{3, 0, 70'000, 1, 2, 9},
          std::vector<std::uint64_t>(kRanks, 0)}) {
      const std::uint64_t first = std::accumulate(counts.begin(), counts.begin() + rank, 0ull);
      std::vector<std::int32_t> mine = numbers(rank, 0, counts[rank]);
      const auto all = gathered(counts);
      std::vector<std::int32_t> output(all.size());
      CollectiveArguments call{.collective = Collective::all_gather,
                               .input = mine.data(),
                               .output = output.data(),
                               .counts = counts,
                               .type = DataType::int32,
                               .tag = 3};
      expect_complete(grid[rank]->collective(call));
      EXPECT_EQ(output, all);
      std::fill(output.begin(), output.end(), 0);
      std::copy(mine.begin(), mine.end(), output.begin() + static_cast<std::ptrdiff_t>(first));
      call.input = output.data() + first;
      auto started = grid[rank]->collective_async(call);
      ASSERT_TRUE(started);
      EXPECT_EQ(started->wait().status, Status::complete);
      EXPECT_EQ(output, all);
    }
  });
}

TEST(GridExchangeTest, reduce_scatter__sums_and_averages) {
  const Grid grid = connect_grid(kRoundRobin);
  ASSERT_EQ(grid.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    const std::vector<std::uint64_t> counts = {4, 1, 0, 20'000, 7, 2};
    const std::uint64_t all = std::accumulate(counts.begin(), counts.end(), 0ull);
    const std::uint64_t first = std::accumulate(counts.begin(), counts.begin() + rank, 0ull);
    for (const ReduceOp function : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max}) {
      const std::vector<std::int32_t> input = numbers(rank, 0, all);
      std::vector<std::int32_t> output(counts[rank]);
      expect_complete(grid[rank]->collective({.collective = Collective::reduce_scatter,
                                              .input = input.data(),
                                              .output = output.data(),
                                              .counts = counts,
                                              .type = DataType::int32,
                                              .function = function}));
      EXPECT_EQ(input, numbers(rank, 0, all));
      for (std::uint64_t i = 0; i < output.size(); ++i) {
        const auto at = static_cast<std::int32_t>(first + i), sum = 15'000 + 6 * at;
        EXPECT_EQ(output[i], function == ReduceOp::sum   ? sum
                             : function == ReduceOp::avg ? sum / 6
                                                         : 5000 + at);
      }
    }
  });
}

TEST(GridExchangeTest, rank_that_calls_something_else__ends_the_call_on_all_ranks) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    std::vector<float> values(100);
    const CollectiveArguments broadcast{.collective = Collective::broadcast,
                                        .input = values.data(),
                                        .output = values.data(),
                                        .count = 100,
                                        .root = 1};
    const auto report =
        rank == 3 ? grid[rank]->collective(broadcast) : grid[rank]->allreduce(in_place(values));
    ASSERT_TRUE(report);
    EXPECT_THAT(report->status, AnyOf(Status::mismatch, Status::aborted)) << report->detail;
  });
}

TEST(GridExchangeTest, arguments_that_make_no_sense__end_the_call_on_all_ranks) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    std::vector<float> values(400);
    CollectiveArguments call{.collective = Collective::all_gather,
                             .input = values.data(),
                             .output = values.data() + 100,
                             .count = 50};
    if (rank == 2) call.input = nullptr;
    const auto report = grid[rank]->collective(call);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->status, Status::aborted);
    if (rank == 2) {
      EXPECT_THAT(report->detail, HasSubstr("the input buffer is null"));
    }
  });
}

TEST(GridExchangeTest, other_collectives__are_refused_by_name) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  for (const Collective what : {Collective::reduce, Collective::gather, Collective::scatter,
                                Collective::all_to_all, Collective::send, Collective::receive}) {
    const auto report = grid[0]->collective({.collective = what});
    ASSERT_FALSE(report);
    EXPECT_THAT(report.error().message, HasSubstr(std::string(name(what))));
  }
  EXPECT_THAT(grid[0]
                  ->collective({.collective = Collective::reduce_scatter, .mode = Mode::bounded})
                  .error()
                  .message,
              HasSubstr("bounded reduce_scatter"));
}

}  // namespace
}  // namespace tarpon::grid_exchange_test
