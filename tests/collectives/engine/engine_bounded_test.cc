// Ranks that come late, and calls that run bounded, in virtual time.
#include "collectives/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_job.h"

namespace tarpon::engine_bounded_test {
namespace {

using testing::ElementsAre;
using testing_support::Buffers;
using testing_support::same_bits;
using testing_support::SimulatedJob;
using testing_support::sum_without_rank_1;

TEST(EngineTest, late__exact_calls_name_exactly_the_ranks_that_never_submitted) {
  for (const std::uint64_t count : {1u, 100u, 20'000u}) {
    for (const std::vector<Rank>& absent : {std::vector<Rank>{3}, std::vector<Rank>{0, 2}}) {
      SimulatedJob job({.ranks = 5, .faults = {.loss = 0.05}});
      Buffers<float> buffers(5, count, true);
      const auto submitted = [&](Rank rank) {
        auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
        arguments.deadline = 2s;
        return arguments;
      };
      const auto calls = job.submit_all(submitted, absent);
      ASSERT_TRUE(job.finish());
      for (const auto& call : calls) {
        EXPECT_EQ(call->report.status, Status::peer_late);
        EXPECT_EQ(call->report.late_ranks, absent) << count << ": " << call->report.detail;
        EXPECT_EQ(call->report.elapsed, 2s);
      }
    }
  }
}

TEST(EngineTest, late__a_call_beyond_the_window_ends_by_its_own_deadline) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 100, true);
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  for (int i = 0; i < 8; ++i) job.submit(0, arguments);
  arguments.deadline = 1s;
  const auto queued = job.submit(0, arguments);
  job.run_for(1s + 1us);
  ASSERT_TRUE(queued->done);
  EXPECT_EQ(queued->report.status, Status::peer_late);
  EXPECT_EQ(queued->report.elapsed, 1s);
  ASSERT_TRUE(job.finish());
}

TEST(EngineTest, late__a_rank_that_submits_later_still_completes) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 10'000, false);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    job.run_for(700ms);
    calls.push_back(job.submit(rank, buffers.arguments(rank, DataType::float32, ReduceOp::sum)));
  }
  ASSERT_TRUE(job.finish());
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(calls[rank]->report.status, Status::complete);
    EXPECT_TRUE(same_bits(buffers.outputs[rank], buffers.expected(ReduceOp::sum, 0)));
  }
  EXPECT_LT(calls[3]->report.elapsed, 50ms);
}

TEST(EngineTest, bounded__an_absent_rank_is_named_and_the_others_have_the_rest) {
  constexpr std::uint64_t kCount = 4000;  // shards of 1008 elements
  for (const MissingFill fill : {MissingFill::zero, MissingFill::local}) {
    Buffers<float> buffers(4, kCount, fill == MissingFill::zero);
    SimulatedJob job({.ranks = 4});
    const auto submitted = [&](Rank rank) {
      auto arguments = buffers.bounded_arguments(rank, ReduceOp::sum);
      arguments.missing = fill;
      return arguments;
    };
    const auto calls = job.submit_all(submitted, {1});
    ASSERT_TRUE(job.finish());
    const ShardLayout layout{kCount, 4, 4};
    const Range lost = layout.elements(shard_of(1, 0, 4));
    for (std::size_t i = 0; i < 3; ++i) {
      const Rank rank = i == 0 ? Rank{0} : static_cast<Rank>(i + 1);
      const Report& report = calls[i]->report;
      EXPECT_EQ(report.status, Status::partial);
      EXPECT_EQ(report.mode, Mode::bounded);
      EXPECT_THAT(report.late_ranks, ElementsAre(1)) << report.detail;
      EXPECT_LT(report.elapsed, 50ms);
      EXPECT_EQ(report.missing,
                (std::vector<std::uint64_t>{lost.count, kCount, lost.count, lost.count}));
      const double whole = 4.0 * static_cast<double>(kCount);
      EXPECT_NEAR(report.lost_stage2, 4.0 * static_cast<double>(lost.count) / whole, 1e-12);
      EXPECT_NEAR(report.lost_stage1, static_cast<double>(kCount - lost.count) / whole, 1e-12);
      EXPECT_NEAR(report.lost_fraction, report.lost_stage1 + report.lost_stage2, 1e-12);
      for (std::uint64_t e = 0; e < kCount; ++e) {
        ASSERT_NEAR(buffers.outputs[rank][e], sum_without_rank_1(buffers, rank, e, fill), 1e-3)
            << "element " << e;
      }
    }
  }
}

TEST(EngineTest, bounded__an_absent_rank_that_owns_nothing_takes_no_shard_along) {
  constexpr std::uint64_t kCount = 4000;
  Buffers<float> buffers(4, kCount, true);
  SimulatedJob job({.ranks = 4});
  const auto submitted = [&](Rank rank) {
    auto arguments = buffers.bounded_arguments(rank, ReduceOp::sum);
    arguments.shares = Shares(std::vector<double>{1, 0, 1, 1});
    return arguments;
  };
  const auto calls = job.submit_all(submitted, {1});
  ASSERT_TRUE(job.finish());
  for (std::size_t i = 0; i < 3; ++i) {
    const Rank rank = i == 0 ? Rank{0} : static_cast<Rank>(i + 1);
    const Report& report = calls[i]->report;
    EXPECT_EQ(report.status, Status::partial);
    EXPECT_THAT(report.late_ranks, ElementsAre(1)) << report.detail;
    EXPECT_THAT(report.void_shards, ElementsAre());
    EXPECT_EQ(report.missing, (std::vector<std::uint64_t>{0, kCount, 0, 0}));
    EXPECT_NEAR(report.lost_fraction, 0.25, 1e-12);
    for (std::uint64_t e = 0; e < kCount; ++e) {
      const float others = buffers.inputs[0][e] + buffers.inputs[2][e] + buffers.inputs[3][e];
      ASSERT_NEAR(buffers.outputs[rank][e], others * 4 / 3, 1e-3) << "element " << e;
    }
  }
  // It takes the whole result when it comes.
  const auto late = job.submit(1, submitted(1));
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(late->report.missing, (std::vector<std::uint64_t>{0, kCount, 0, 0}));
  EXPECT_TRUE(same_bits(buffers.outputs[1], buffers.outputs[0]));
}

TEST(EngineTest, bounded__ranks_with_different_shares_do_not_match) {
  Buffers<float> buffers(2, 4000, false);
  SimulatedJob job({.ranks = 2});
  const auto calls = job.submit_all([&](Rank rank) {
    auto arguments = buffers.bounded_arguments(rank, ReduceOp::sum);
    if (rank == 1) arguments.shares = Shares(std::vector<double>{1, 0});
    return arguments;
  });
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::mismatch);
}

/// Ranks in `late` submit one after the other when the others have ended.
void expect_late_ranks_fetch(const std::vector<Rank>& late) {
  constexpr std::uint64_t kCount = 40'000;
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, kCount, true);
  const auto submit = [&](Rank rank) {
    return job.submit(rank, buffers.bounded_arguments(rank, ReduceOp::sum));
  };
  std::vector<Rank> on_time;
  for (Rank rank = 0; rank < 4; ++rank) {
    if (std::find(late.begin(), late.end(), rank) == late.end()) on_time.push_back(rank);
  }
  for (const Rank rank : on_time) submit(rank);
  ASSERT_TRUE(job.finish());
  const ShardLayout layout{kCount, 4, 4};
  for (const Rank rank : late) {
    const auto call = submit(rank);
    ASSERT_TRUE(job.finish());
    EXPECT_EQ(call->report.status, Status::late_self) << call->report.detail;
    EXPECT_LT(call->report.elapsed, 200ms);
    EXPECT_EQ(call->report.missing[rank], kCount);
    EXPECT_EQ(buffers.outputs[rank], buffers.outputs[on_time.front()]) << "rank " << rank;
    const Range own = layout.elements(shard_of(rank, 0, 4));
    EXPECT_EQ(buffers.outputs[rank][own.first], 0);
  }
}

TEST(EngineTest, bounded__a_late_rank_fetches_the_others_result) {
  expect_late_ranks_fetch({1});
}

TEST(EngineTest, bounded__a_late_rank_for_which_everything_waits_already_has_no_shard_either) {
  constexpr std::uint64_t kCount = 4000;  // within the initial credit
  SimulatedJob job({.ranks = 4});
  Buffers<float> first(4, kCount, true), second(4, kCount, true);
  const auto submit = [&](Rank rank, Buffers<float>& buffers) {
    return job.submit(rank, buffers.bounded_arguments(rank, ReduceOp::sum));
  };
  Buffers<float> before(4, kCount, true);
  for (Rank rank = 0; rank < 4; ++rank) submit(rank, before);
  ASSERT_TRUE(job.finish());
  // The packets of the second call say that the first one is closed.
  for (Buffers<float>* buffers : {&first, &second}) {
    for (const int rank : {0, 2, 3}) submit(static_cast<Rank>(rank), *buffers);
    ASSERT_TRUE(job.finish());
  }
  const auto call = submit(1, first);
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(call->report.status, Status::late_self) << call->report.detail;
  EXPECT_EQ(first.outputs[1], first.outputs[0]);
}

TEST(EngineTest, bounded__late_ranks_do_not_wait_for_each_other) {
  expect_late_ranks_fetch({1, 2});
}

TEST(EngineTest, bounded__after_being_late_a_rank_takes_part_again) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 4000, true);
  const auto submit = [&](Rank rank) {
    return job.submit(rank, buffers.bounded_arguments(rank, ReduceOp::sum));
  };
  for (const int rank : {0, 1, 3}) submit(static_cast<Rank>(rank));
  ASSERT_TRUE(job.finish());
  submit(2);
  ASSERT_TRUE(job.finish());
  const auto calls =
      job.submit_all([&](Rank rank) { return buffers.bounded_arguments(rank, ReduceOp::sum); });
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::complete);
}

TEST(EngineTest, bounded__without_a_bound_the_deadline_still_gives_a_result) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 4000, true);
  const auto submitted = [&](Rank rank) {
    return buffers.bounded_arguments(rank, ReduceOp::avg, std::nullopt);
  };
  const auto calls = job.submit_all(submitted, {1});
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    const Report& report = call->report;
    EXPECT_EQ(report.status, Status::partial) << name(report.status) << ": " << report.detail;
    EXPECT_THAT(report.late_ranks, ElementsAre(1));
    EXPECT_LE(report.elapsed, 4s + 10ms);
  }
}

TEST(EngineTest, bounded__nothing_lost_is_complete_and_needs_no_bound) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 4000, true);
  const auto calls =
      job.submit_all([&](Rank rank) { return buffers.bounded_arguments(rank, ReduceOp::avg, 2s); });
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::complete);
    EXPECT_LT(call->report.elapsed, 10ms);
  }
}

TEST(EngineTest, bounded__one_lost_packet_does_not_take_the_rest_of_the_message) {
  std::uint64_t lost_more = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SimulatedJob job({.ranks = 2, .slot_bytes = 64, .faults = {.loss = 0.01}, .seed = seed});
    Buffers<float> buffers(2, 500'000, true);  // 15625 slots a shard: several windows
    const auto calls = job.submit_all(
        [&](Rank rank) { return buffers.bounded_arguments(rank, ReduceOp::avg, 500ms); });
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) lost_more += call->report.lost_fraction > 0.03;
  }
  EXPECT_EQ(lost_more, 0u) << "of 60 results";
}

TEST(EngineTest, bounded__integers_min_max_and_prod_run_exact) {
  SimulatedJob job({.ranks = 2});
  Buffers<double> buffers(2, 100, false);
  for (const auto& [type, function] :
       std::vector<std::pair<DataType, ReduceOp>>{{DataType::int32, ReduceOp::sum},
                                                  {DataType::float64, ReduceOp::min},
                                                  {DataType::float32, ReduceOp::max},
                                                  {DataType::float64, ReduceOp::prod}}) {
    const auto submitted = [&, type = type, function = function](Rank rank) {
      auto arguments = buffers.arguments(rank, type, function);
      arguments.mode = Mode::bounded;
      return arguments;
    };
    const auto calls = job.submit_all(submitted);
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) EXPECT_EQ(call->report.mode, Mode::exact);
  }
}

}  // namespace
}  // namespace tarpon::engine_bounded_test
