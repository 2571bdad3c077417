// AllReduce of whole jobs in virtual time: results and limits.
#include "collectives/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_job.h"

namespace tarpon::engine_test {
namespace {

using testing::HasSubstr;
using testing_support::Buffers;
using testing_support::same_bits;
using testing_support::SimulatedJob;

template <typename T>
constexpr DataType type_of() {
  if constexpr (std::is_same_v<T, float>) return DataType::float32;
  if constexpr (std::is_same_v<T, double>) return DataType::float64;
  if constexpr (std::is_same_v<T, std::int32_t>) return DataType::int32;
  return DataType::int64;
}

constexpr ReduceOp kFunctions[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max,
                                   ReduceOp::prod};

template <typename T>
void expect_exact(std::uint16_t ranks, std::uint64_t count, ReduceOp function, bool in_place,
                  const FaultOptions& faults = {}) {
  SCOPED_TRACE(std::string(name(function)) + " of " + std::to_string(count) + " " +
               std::string(name(type_of<T>())) + " on " + std::to_string(ranks) + " ranks" +
               (in_place ? " in place" : ""));
  SimulatedJob job({.ranks = ranks, .faults = faults});
  Buffers<T> buffers(ranks, count, in_place);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < ranks; ++rank) {
    calls.push_back(job.submit(rank, buffers.arguments(rank, type_of<T>(), function)));
  }
  ASSERT_TRUE(job.finish());
  const std::vector<T> expected = buffers.expected(function, 0);
  const Buffers<T> untouched(ranks, count, in_place);
  for (Rank rank = 0; rank < ranks; ++rank) {
    const Report& report = calls[rank]->report;
    ASSERT_EQ(report.status, Status::complete) << report.detail;
    EXPECT_TRUE(report.missing.empty() && report.runs.empty() && report.late_ranks.empty());
    EXPECT_EQ(report.lost_fraction, 0);
    EXPECT_TRUE(same_bits(buffers.outputs[rank], expected)) << "rank " << rank;
    EXPECT_TRUE(same_bits(buffers.inputs[rank], untouched.inputs[rank]));
  }
}

template <typename T>
class EngineTypedTest : public testing::Test {};
using Elements = testing::Types<float, double, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(EngineTypedTest, Elements);

TYPED_TEST(EngineTypedTest, exact__every_function_count_and_world) {
  for (const ReduceOp function : kFunctions) {
    for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{1, 2, 3, 5}) {
      for (const std::uint64_t count : {0u, 1u, 2u, 4u, 16u, 17u, 129u, 5000u}) {
        expect_exact<TypeParam>(ranks, count, function, count % 2 == 0);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(EngineTypedTest, exact__under_loss_the_same_bits) {
  const FaultOptions faults{.loss = 0.1, .duplicate = 0.1, .reorder = 0.2, .corrupt = 0.02};
  for (const bool in_place : {false, true}) {
    expect_exact<TypeParam>(4, 5000, ReduceOp::avg, in_place, faults);
  }
}

TEST(EngineTest, exact__64_ranks) {
  expect_exact<float>(64, 63, ReduceOp::sum, true);
  expect_exact<float>(64, 10'000, ReduceOp::avg, false);
}

TEST(EngineTest, exact__shards_that_are_confirmed_rather_than_copied) {
  expect_exact<float>(2, 100'000, ReduceOp::sum, true);
  expect_exact<float>(2, 100'000, ReduceOp::sum, true, {.loss = 0.1});
}

TEST(EngineTest, submit__refuses_what_makes_no_sense) {
  SimulatedJob job({.ranks = 2});
  float element = 0;
  const AllreduceArguments good{.input = &element, .output = &element, .count = 1};
  AllreduceArguments bad = good;
  bad.input = nullptr;
  const auto detail = [&] { return job[0].submit(bad, job.now())->report.detail; };
  EXPECT_THAT(detail(), HasSubstr("input buffer is null"));
  bad = good;
  bad.output = nullptr;
  EXPECT_THAT(detail(), HasSubstr("output buffer is null"));
  bad = good;
  bad.deadline = 0s;
  EXPECT_THAT(detail(), HasSubstr("deadline"));
  bad = good;
  bad.bound = -1ns;
  EXPECT_THAT(detail(), HasSubstr("bound"));
  bad = good;
  bad.count = 1ull << 45;
  EXPECT_THAT(detail(), HasSubstr("split"));
  EXPECT_EQ(job[0].outstanding(), 0u);
}

TEST(EngineTest, submit__many_tags_each_beyond_its_window) {
  constexpr std::uint16_t kRanks = 3;
  constexpr std::uint32_t kTags = 7;
  constexpr std::uint32_t kCalls = 20;  // a tag; the window is 8
  SimulatedJob job({.ranks = kRanks, .faults = {.loss = 0.02, .reorder = 0.1}});
  std::vector<std::unique_ptr<Buffers<double>>> buffers;
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (std::uint32_t i = 0; i < kTags * kCalls; ++i) {
    buffers.push_back(std::make_unique<Buffers<double>>(kRanks, 10 * i, i % 2 == 0, i));
  }
  for (Rank rank = 0; rank < kRanks; ++rank) {
    for (std::uint32_t i = 0; i < kTags * kCalls; ++i) {
      // Ranks interleave the tags differently: only the order within a tag must agree.
      const std::uint32_t tag = rank % 2 == 0 ? i % kTags : kTags - 1 - i % kTags;
      const std::uint32_t index = i / kTags * kTags + tag;
      auto arguments = buffers[index]->arguments(rank, DataType::float64, ReduceOp::sum);
      arguments.tag = tag;
      calls.push_back(job.submit(rank, arguments));
    }
  }
  EXPECT_EQ(job[0].outstanding(), kTags * kCalls);
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(job[0].outstanding(), 0u);
  for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::complete);
  for (std::uint32_t i = 0; i < kTags * kCalls; ++i) {
    const auto expected = buffers[i]->expected(ReduceOp::sum, i / kTags);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(same_bits(buffers[i]->outputs[rank], expected)) << "call " << i;
    }
  }
}

TEST(EngineTest, submit__alone_the_result_is_the_input_at_once) {
  SimulatedJob job({.ranks = 1});
  Buffers<float> buffers(1, 100, false);
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::avg);
  arguments.tag = 9;
  const auto call = job.submit(0, arguments);
  EXPECT_TRUE(call->done);
  EXPECT_EQ(call->report.status, Status::complete);
  EXPECT_EQ(call->report.tag, 9u);
  EXPECT_TRUE(same_bits(buffers.outputs[0], buffers.inputs[0]));
}

TEST(EngineTest, retain__a_small_limit_does_not_hold_calls_back) {
  SimulatedJob job({.ranks = 3, .retain_bytes = 0});
  std::vector<std::unique_ptr<Buffers<float>>> buffers;
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int i = 0; i < 8; ++i) {
    buffers.push_back(std::make_unique<Buffers<float>>(3, 1000, true));
    for (Rank rank = 0; rank < 3; ++rank) {
      calls.push_back(
          job.submit(rank, buffers.back()->arguments(rank, DataType::float32, ReduceOp::sum)));
    }
  }
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::complete);
    EXPECT_LT(call->report.elapsed, 1s);
  }
}

TEST(EngineTest, retain__calls_that_keep_nothing_need_no_room) {
  SimulatedJob job({.ranks = 3, .retain_bytes = 0});
  Buffers<float> buffers(3, 1000, true), nothing(3, 0, true);
  for (Rank rank = 0; rank < 3; ++rank) {
    job.submit(rank, buffers.arguments(rank, DataType::float32, ReduceOp::sum));
  }
  ASSERT_TRUE(job.finish());
  EXPECT_GT(job[0].endpoint().memory().retained_bytes, 0u);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 3; ++rank) {
    auto arguments = nothing.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.tag = 1;
    calls.push_back(job.submit(rank, arguments));
  }
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) EXPECT_LT(call->report.elapsed, 10ms);
}

// One of three ranks cannot exclude two silent ones: the memory for them has a limit all the same.
TEST(EngineTest, retain__calls_at_their_deadlines_keep_no_more_than_the_limit) {
  constexpr std::uint64_t kRetain = 100'000;
  SimulatedJob job({.ranks = 3, .retain_bytes = kRetain});
  Buffers<float> buffers(3, 12'000, false);
  const auto submit = [&](Rank rank, Duration deadline) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = 5ms;
    arguments.deadline = deadline;
    return job.submit(rank, arguments);
  };
  for (Rank rank = 0; rank < 3; ++rank) submit(rank, 1s);
  ASSERT_TRUE(job.finish());
  job.stop(1);
  job.stop(2);
  submit(0, 1s);
  job.run_for(2s);  // they count as silent
  for (int call = 0; call < 30; ++call) {
    const auto one = submit(0, 100ms);
    job.run_for(150ms);
    ASSERT_TRUE(one->done);
    EXPECT_EQ(one->report.status, Status::partial);
    EXPECT_LE(job[0].endpoint().memory().retained_bytes, kRetain);
  }
  EXPECT_NE(job[0].take_eviction_wish(), 0u);
}

// Nobody can have what is lost: the call does not ask for it until its deadline.
TEST(EngineTest, without_retention__a_lost_result_ends_a_bounded_call_at_once) {
  Mechanisms mechanisms;
  mechanisms.retention = false;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    FaultOptions faults;
    faults.loss = 0.05;
    SimulatedJob job({.ranks = 2, .faults = faults, .seed = seed, .mechanisms = mechanisms});
    Buffers<float> buffers(2, 20'000, false);
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < 2; ++rank) {
      auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
      arguments.mode = Mode::bounded;
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) EXPECT_LT(call->report.elapsed, 1s) << seed;
  }
}

}  // namespace
}  // namespace tarpon::engine_test
