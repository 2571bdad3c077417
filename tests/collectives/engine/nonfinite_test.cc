// NaN and infinity in an input: bounded results are NaN as a whole and say why, exact ones are not.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "collectives/membership/agreement.h"
#include "tests/support/simulated_job.h"

namespace tarpon::nonfinite_test {
namespace {

using namespace testing_support;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Outcome {
  std::vector<Report> reports;
  std::vector<std::vector<float>> outputs;

  std::uint64_t nan(Rank rank) const {
    std::uint64_t count = 0;
    for (const float value : outputs[rank]) count += std::isnan(value) ? 1 : 0;
    return count;
  }
};

/// One call, whose rank `spoiled` has `value` as element `at`.
Outcome run(const SimulatedJobOptions& options, Mode mode, Rank spoiled, float value,
            std::uint64_t count, std::uint64_t at, bool in_place = false) {
  SimulatedJob job(options);
  Buffers<float> buffers(options.ranks, count, in_place);
  (in_place ? buffers.outputs : buffers.inputs)[spoiled][at] = value;
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    AllreduceArguments arguments = buffers.arguments(rank, DataType::float32, ReduceOp::avg);
    arguments.mode = mode;
    arguments.bound = 50ms;
    calls.push_back(job.submit(rank, arguments));
  }
  EXPECT_TRUE(job.finish());
  Outcome outcome;
  for (const auto& call : calls) outcome.reports.push_back(call->report);
  outcome.outputs = buffers.outputs;
  return outcome;
}

TEST(NonfiniteTest, bounded__the_whole_result_is_nan_on_every_rank) {
  for (const float value : {kNan, kInfinity, -kInfinity}) {
    for (const std::uint64_t at : {0ull, 1999ull, 3999ull}) {
      for (const bool in_place : {false, true}) {
        const Outcome outcome = run({.ranks = 4}, Mode::bounded, 2, value, 4000, at, in_place);
        for (Rank rank = 0; rank < 4; ++rank) {
          const Report& report = outcome.reports[rank];
          EXPECT_TRUE(report.nonfinite);
          EXPECT_EQ(report.nonfinite_ranks, std::vector<Rank>{2}) << "on rank " << rank;
          EXPECT_EQ(report.status, Status::complete) << "nothing is missing";
          EXPECT_EQ(outcome.nan(rank), 4000u);
          EXPECT_TRUE(loss_report(report).nonfinite);
        }
      }
    }
  }
}

TEST(NonfiniteTest, bounded__whatever_is_lost_whoever_holds_something_of_it_knows) {
  int knew = 0, lacked = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SimulatedJobOptions options{.ranks = 4, .seed = seed};
    options.faults.loss = 0.3;
    const Outcome outcome = run(options, Mode::bounded, 1, kNan, 2000, seed * 31 % 2000);
    for (Rank rank = 0; rank < 4; ++rank) {
      const Report& report = outcome.reports[rank];
      if (report.nonfinite) {
        ++knew;
        EXPECT_EQ(outcome.nan(rank), 2000u) << "seed " << seed;
        EXPECT_TRUE(report.nonfinite_ranks.empty() ||
                    report.nonfinite_ranks == std::vector<Rank>{1});
        continue;
      }
      ++lacked;
      EXPECT_EQ(outcome.nan(rank), 0u) << "seed " << seed << " rank " << rank;
      ASSERT_EQ(report.missing.size(), 4u) << "seed " << seed << " rank " << rank;
      EXPECT_EQ(report.missing[1], 2000u);
    }
  }
  EXPECT_GT(knew, 230) << "of 240; " << lacked << " had nothing of it";
}

TEST(NonfiniteTest, exact__is_elementwise) {
  const Outcome outcome = run({.ranks = 4}, Mode::exact, 2, kNan, 4000, 17);
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_FALSE(outcome.reports[rank].nonfinite);
    EXPECT_EQ(outcome.nan(rank), 1u);
    EXPECT_TRUE(std::isnan(outcome.outputs[rank][17]));
  }
}

TEST(NonfiniteTest, bounded__taken_out_it_is_elementwise_too) {
  SimulatedJobOptions options{.ranks = 4};
  EXPECT_TRUE(options.mechanisms.take_out("nonfinite"));
  const Outcome outcome = run(options, Mode::bounded, 2, kNan, 4000, 17);
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(outcome.nan(rank), 1u);
}

TEST(NonfiniteTest, bounded__the_next_call_is_as_ever) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> first(2, 100, false), second(2, 100, false);
  first.inputs[0][5] = kInfinity;
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Buffers<float>* buffers : {&first, &second}) {
    for (Rank rank = 0; rank < 2; ++rank) {
      AllreduceArguments arguments = buffers->arguments(rank, DataType::float32, ReduceOp::sum);
      arguments.mode = Mode::bounded;
      calls.push_back(job.submit(rank, arguments));
    }
  }
  ASSERT_TRUE(job.finish());
  EXPECT_TRUE(calls[0]->report.nonfinite && calls[1]->report.nonfinite);
  EXPECT_FALSE(calls[2]->report.nonfinite || calls[3]->report.nonfinite);
  EXPECT_TRUE(same_bits(second.outputs[0], second.expected(ReduceOp::sum, 1)));
}

TEST(NonfiniteTest, bounded__a_late_rank_takes_what_the_others_have) {
  for (const bool late_is_spoiled : {false, true}) {
    SimulatedJob job({.ranks = 4});
    Buffers<float> buffers(4, 40'000, false);
    buffers.inputs[late_is_spoiled ? 3 : 0][7] = kNan;
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < 4; ++rank) {
      if (rank == 3) job.run_for(200ms);
      AllreduceArguments arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
      arguments.mode = Mode::bounded;
      arguments.bound = 20ms;
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish());
    for (Rank rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(calls[rank]->report.status, rank == 3 ? Status::late_self : Status::partial);
      EXPECT_EQ(calls[rank]->report.nonfinite, !late_is_spoiled) << "rank " << rank;
      const std::vector<Rank> named = late_is_spoiled ? std::vector<Rank>{} : std::vector<Rank>{0};
      EXPECT_EQ(calls[rank]->report.nonfinite_ranks, named);
    }
    const auto spoiled = static_cast<std::uint64_t>(
        std::count_if(buffers.outputs[3].begin(), buffers.outputs[3].end(),
                      [](float value) { return std::isnan(value); }));
    EXPECT_EQ(spoiled, late_is_spoiled ? 0u : 40'000u);
  }
}

}  // namespace
}  // namespace tarpon::nonfinite_test
