// Grids of few ranks, whose hosts are given: exact calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/grid/grid_allreduce.h"
#include "tests/collectives/grid/grid_job.h"
#include "tests/support/sanitized.h"

namespace tarpon::grid_test {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kChunk = grid::GridAllreduce::kChunkBytes / sizeof(float);  // of one rank

void expect_sum(Communicator& rank, std::size_t count, std::uint32_t salt = 0) {
  std::vector<float> values = input(rank.rank(), count, salt);
  const auto report = rank.allreduce(in_place(values));
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->status, Status::complete) << report->detail;
  EXPECT_EQ(values, sum(rank.world_size(), count, salt)) << count;
}

TEST(GridTest, exact_sums__of_any_size) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    EXPECT_EQ(grid[rank]->rank(), rank);
    EXPECT_EQ(grid[rank]->world_size(), 4u);
    std::uint32_t salt = 0;
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{17},
                                    std::size_t{5000}, 2 * kChunk, 7 * kChunk + 3}) {
      expect_sum(*grid[rank], count, ++salt);
    }
    EXPECT_TRUE(grid[rank]->barrier(10s));
    EXPECT_TRUE(grid[rank]->close(10s));
  });
}

TEST(GridTest, ranks_that_lie_round_robin__are_taken_as_they_lie) {
  const Grid grid = connect_grid({0, 1, 2, 0, 1, 2});
  ASSERT_EQ(grid.size(), 6u);
  on_all(6, [&](Rank rank) { expect_sum(*grid[rank], 10'000); });
}

template <typename Element>
void expect_average(Communicator& rank, DataType type, Element sum) {
  std::vector<Element> values(100, static_cast<Element>(rank.rank() * 3 - 7));
  const auto report = rank.allreduce({.input = values.data(),
                                      .output = values.data(),
                                      .count = values.size(),
                                      .type = type,
                                      .function = ReduceOp::avg});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(values, std::vector<Element>(100, sum / 6));
}

TEST(GridTest, averages__are_the_sum_over_all_ranks_divided_once) {
  const Grid grid = connect_grid({0, 0, 0, 1, 1, 1});
  ASSERT_EQ(grid.size(), 6u);
  on_all(6, [&](Rank rank) {
    expect_average<float>(*grid[rank], DataType::float32, 3.0f);
    expect_average<double>(*grid[rank], DataType::float64, 3.0);
    expect_average<std::int32_t>(*grid[rank], DataType::int32, 3);
  });
}

TEST(GridTest, report__has_the_ranks_of_the_job) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    std::vector<float> values = input(rank, 1000);
    const auto report = grid[rank]->allreduce(in_place(values, 5));
    ASSERT_TRUE(report);
    EXPECT_EQ(report->tag, 5u);
    EXPECT_EQ(report->algorithm, Algorithm::hosts);
    ASSERT_EQ(report->peers.size(), 4u);
    const Rank peer = static_cast<Rank>((rank + 2) % 4);  // of this rank's rail
    for (Rank other = 0; other < 4; ++other) {
      const auto& bytes = report->peers[other].bytes_received;
      EXPECT_EQ(bytes[0] + bytes[1] > 0, other == peer) << other;
    }
    EXPECT_EQ(report->mask({2, 3}), 2u);  // both are of host 1
  });
}

TEST(GridTest, input_apart_from_output__stays_as_it_is) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    const std::vector<float> given = input(rank, 4 * kChunk + 1);
    std::vector<float> from = given, to(given.size());
    AllreduceArguments call = in_place(from);
    call.output = to.data();
    expect_complete(grid[rank]->allreduce(call));
    EXPECT_EQ(from, given);
    EXPECT_EQ(to, sum(4, given.size()));
  });
}

TEST(GridTest, calls_of_several_tags__may_be_started_in_any_order) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    constexpr std::uint32_t kTags = 6, kEach = 3;
    const auto count = [](std::uint32_t tag) { return tag == 2 ? 5 * kChunk : 3000; };
    const auto tag_of = [&](std::uint32_t i) { return (i + rank) % kTags; };
    std::vector<std::vector<float>> buffers;
    std::vector<AsyncAllreduce> calls;
    for (std::uint32_t i = 0; i < kTags * kEach; ++i) {
      buffers.push_back(input(rank, count(tag_of(i)), tag_of(i) + i / kTags));
    }
    for (std::uint32_t i = 0; i < kTags * kEach; ++i) {
      auto call = grid[rank]->allreduce_async(in_place(buffers[i], tag_of(i) * 1000));
      ASSERT_TRUE(call) << call.error().message;
      calls.push_back(*call);
    }
    for (std::uint32_t i = 0; i < kTags * kEach; ++i) {
      const Report report = calls[i].wait();
      EXPECT_EQ(report.status, Status::complete) << report.detail;
      EXPECT_TRUE(calls[i].done());
      EXPECT_EQ(report.tag, tag_of(i) * 1000);
      EXPECT_EQ(buffers[i], sum(4, buffers[i].size(), tag_of(i) + i / kTags));
    }
  });
}

TEST(GridTest, sixty_four_hosts__and_sixty_four_places_fill_the_masks) {
  if (kSanitizer) GTEST_SKIP() << "128 ranks of one process take minutes with a sanitizer";
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 20'000) GTEST_SKIP() << "needs 20000 open files: raise `ulimit -Hn`";
  for (const std::uint32_t hosts : {64u, 2u}) {
    std::vector<int> keys;
    for (std::uint32_t rank = 0; rank < 128; ++rank) keys.push_back(static_cast<int>(rank % hosts));
    const Grid grid = connect_grid(keys);
    ASSERT_EQ(grid.size(), 128u);
    on_all(128, [&](Rank rank) {
      EXPECT_EQ(grid[rank]->mask_bit(127), hosts - 1);
      expect_sum(*grid[rank], 10'000);
      EXPECT_TRUE(grid[rank]->close(60s));
    });
  }
}

TEST(GridTest, resync__copies_from_any_rank) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    std::vector<float> state = input(rank, 1'500'000);
    ASSERT_TRUE(grid[rank]->resync(3, state.data(), state.size() * sizeof(float), 30s));
    EXPECT_EQ(state, input(3, state.size()));
  });
}

TEST(GridTest, different_counts_on_two_hosts__are_a_mismatch_and_end_the_tag) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    std::vector<float> values(rank < 2 ? 1000 : 2000);
    const auto report = grid[rank]->allreduce(in_place(values));
    ASSERT_TRUE(report);
    EXPECT_THAT(report->status, testing::AnyOf(Status::mismatch, Status::aborted));
    values.resize(1000);
    const auto later = grid[rank]->allreduce(in_place(values));
    ASSERT_TRUE(later);
    EXPECT_EQ(later->status, Status::aborted);
    EXPECT_THAT(later->detail, HasSubstr("tag 0"));
    expect_complete(grid[rank]->allreduce(in_place(values, 1)));
  });
}

TEST(GridTest, rank_that_refuses_a_call__ends_it_on_all_ranks) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    std::vector<float> values(3 * kChunk);
    AllreduceArguments call = in_place(values);
    if (rank == 3) call.refusal = "no room";
    const auto report = grid[rank]->allreduce(call);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->status, Status::aborted);
    if (rank == 3) {
      EXPECT_THAT(report->detail, HasSubstr("no room"));
    }
    if (rank == 2) {
      EXPECT_THAT(report->blamed, ElementsAre(3));
    }
  });
}

TEST(GridTest, abort__reaches_ranks_of_other_hosts_and_rails_with_its_reason) {
  const Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    std::vector<float> values(100);
    if (rank == 0) {
      grid[0]->abort("out of fuel");
      return;
    }
    const auto report = grid[rank]->allreduce(in_place(values));
    ASSERT_TRUE(report);
    EXPECT_EQ(report->status, Status::aborted);
    EXPECT_THAT(report->blamed, ElementsAre(0));
    EXPECT_THAT(report->detail, HasSubstr("out of fuel"));
  });
}

TEST(GridTest, calls_of_a_communicator_that_is_destroyed__are_done) {
  Grid grid = connect_grid({0, 0, 1, 1});
  ASSERT_EQ(grid.size(), 4u);
  std::vector<float> values(1000);
  auto call = grid[1]->allreduce_async(in_place(values));
  ASSERT_TRUE(call);
  EXPECT_FALSE(call->done());
  grid.clear();
  EXPECT_TRUE(call->done());
  EXPECT_EQ(call->wait().status, Status::aborted);
}

TEST(GridTest, what_is_not_there__is_refused_by_name) {
  const Grid grid = connect_grid({0, 1, 0, 1});
  ASSERT_EQ(grid.size(), 4u);
  Communicator& rank = *grid[0];
  std::vector<float> values(100);
  AllreduceArguments ring = in_place(values);
  ring.algorithm = Algorithm::ring;
  EXPECT_THAT(rank.allreduce(ring).error().message, HasSubstr("algorithm ring"));
  EXPECT_THAT(rank.allreduce(in_place(values, 0x80000000)).error().message, HasSubstr("tag"));
  EXPECT_THAT(rank.split({0, 1}, 1, 1s).error().message, HasSubstr("split"));
  EXPECT_THAT(rank.shrink(1s).error().message, HasSubstr("shrink"));
  EXPECT_THAT(rank.rejoin(1s).error().message, HasSubstr("rejoin"));
  EXPECT_THAT(rank.probe(0, 1s).error().message, HasSubstr("messages"));
}

void expect_refused(const std::vector<int>& hosts, const ChangeOptions& change,
                    const testing::Matcher<std::string>& text) {
  for (const auto& made : try_grid(hosts, change)) {
    ASSERT_FALSE(made);
    EXPECT_THAT(made.error().message, text);
  }
}

TEST(GridConnectTest, hosts_of_different_sizes__are_named_on_every_rank) {
  expect_refused({0, 0, 1, 1, 1}, nullptr,
                 AllOf(HasSubstr("5 ranks on 2 hosts"), HasSubstr("has 2 (rank 0, ...)"),
                       HasSubstr("has 3 (rank 2, ...)")));
}

TEST(GridConnectTest, option_that_forbids_memory__is_named_on_every_rank) {
  expect_refused(
      {0, 0, 1, 1}, [](auto& options) { options.hosts = false; },
      AllOf(HasSubstr("memory that the ranks of a host share"), HasSubstr("TARPON_HOSTS")));
}

TEST(GridConnectTest, rank_whose_interface_does_not_exist__is_named_on_every_rank) {
  expect_refused(
      {0, 0, 1, 1},
      [](auto& options) {
        if (options.rendezvous.rank == 2) options.interface = "nonesuch";
      },
      AllOf(HasSubstr("rank 2"), HasSubstr("nonesuch")));
}

}  // namespace
}  // namespace tarpon::grid_test
