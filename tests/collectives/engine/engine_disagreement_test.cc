// Ranks that ask for different calls, or give one up, in virtual time.
#include "collectives/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_job.h"

namespace tarpon::engine_disagreement_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::Buffers;
using testing_support::same_bits;
using testing_support::SimulatedJob;

struct Disagreement {
  const char* field;
  std::function<void(AllreduceArguments&)> change;
};

/// Rank 2 of `ranks` passes other arguments, `delay` after the others.
void expect_mismatch(std::uint16_t ranks, const Disagreement& one, Duration delay) {
  SCOPED_TRACE(std::string(one.field) + " on " + std::to_string(ranks) + " ranks, " +
               std::to_string(delay / 1ms) + " ms later");
  SimulatedJob job({.ranks = ranks});
  Buffers<double> buffers(ranks, 4000, false);
  std::vector<std::shared_ptr<PendingCall>> calls(ranks);
  const auto submit = [&](Rank rank) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.count = 2000;
    arguments.bound = 1s;
    if (rank == 2) one.change(arguments);
    calls[rank] = job.submit(rank, arguments);
  };
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank != 2) submit(rank);
  }
  job.run_for(delay);
  submit(2);
  ASSERT_TRUE(job.finish());
  for (Rank rank = 0; rank < ranks; ++rank) {
    const Report& report = calls[rank]->report;
    EXPECT_EQ(report.status, Status::mismatch) << name(report.status) << ": " << report.detail;
    EXPECT_THAT(report.detail, HasSubstr(one.field));
    EXPECT_LT(report.elapsed, delay + 1s);
    if (rank == 2) {
      EXPECT_THAT(report.blamed, ElementsAre(2));
      EXPECT_THAT(report.detail, HasSubstr("this rank differs from all others"));
    } else {
      EXPECT_THAT(report.blamed, ElementsAre(2));
      EXPECT_THAT(report.detail, HasSubstr("rank 2"));
    }
  }
}

TEST(EngineTest, mismatch__names_the_field_and_the_rank_everywhere) {
  const std::vector<Disagreement> all{
      {"count", [](auto& a) { a.count = 1999; }},
      {"count", [](auto& a) { a.count = 1; }},
      {"count", [](auto& a) { a.count = 0; }},
      {"type", [](auto& a) { a.type = DataType::int32; }},
      {"type", [](auto& a) { a.type = DataType::float64; }},
      {"function", [](auto& a) { a.function = ReduceOp::max; }},
      {"mode", [](auto& a) { a.mode = Mode::bounded; }},
      {"algorithm", [](auto& a) { a.algorithm = Algorithm::ring; }},
  };
  for (const Disagreement& one : all) {
    for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{3, 8}) {
      for (const Duration delay : {Duration(0ms), Duration(5ms), Duration(300ms)}) {
        expect_mismatch(ranks, one, delay);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(EngineTest, mismatch__the_tag_works_on_afterwards) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 100, false);
  job.submit_all([&](Rank rank) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.count -= rank;
    return arguments;
  });
  ASSERT_TRUE(job.finish());
  const auto calls = job.submit_all(
      [&](Rank rank) { return buffers.arguments(rank, DataType::float32, ReduceOp::sum); });
  ASSERT_TRUE(job.finish());
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(calls[rank]->report.status, Status::complete);
    EXPECT_EQ(calls[rank]->report.operation, 1u);
    EXPECT_TRUE(same_bits(buffers.outputs[rank], buffers.expected(ReduceOp::sum, 1)));
  }
}

TEST(EngineTest, abort__tells_the_peers_who_gave_up) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 1000, false);
  const auto submitted = [&](Rank rank) {
    return buffers.arguments(rank, DataType::float32, ReduceOp::sum);
  };
  const auto calls = job.submit_all(submitted, {2});
  job.run_for(5ms);
  job[0].abort(job.now());
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::aborted);
    EXPECT_THAT(call->report.blamed, ElementsAre(0));
    EXPECT_LT(call->report.elapsed, 10ms);
  }
  EXPECT_EQ(job[0].outstanding(), 0u);
}

TEST(EngineTest, abort__calls_beyond_the_window_keep_their_numbers) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 100, true);
  const auto submit = [&](Rank rank) {
    return job.submit(rank, buffers.arguments(rank, DataType::float32, ReduceOp::sum));
  };
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int i = 0; i < 11; ++i) calls.push_back(submit(0));
  job.run_for(5ms);
  job[0].abort(job.now());
  for (int i = 0; i < 11; ++i) calls.push_back(submit(1));
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::aborted);
  const auto mine = submit(0), theirs = submit(1);
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(mine->report.status, Status::complete);
  EXPECT_EQ(mine->report.operation, 11u);
  EXPECT_EQ(theirs->report.operation, 11u);
}

}  // namespace
}  // namespace tarpon::engine_disagreement_test
