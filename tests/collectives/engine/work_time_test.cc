// The work on the buffers of a bounded call is part of its bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "collectives/engine/learning/work_rate.h"
#include "tests/support/simulated_job.h"

namespace tarpon::testing_support::work_time_test {
namespace {

constexpr std::uint16_t kRanks = 2;
constexpr std::uint64_t kCount = 4 << 20;  // 16 MiB: 134 ms on the wire, 3 ms to work through
constexpr Duration kBound = 50ms;

class Calls {
 public:
  explicit Calls(const Mechanisms& mechanisms) {
    SimulatedJobOptions options{.ranks = kRanks, .slot_bytes = 1408, .piece_bytes = 1 << 20};
    options.links.emplace();
    options.links->ingress = {.bits_per_second = 1e9, .queue_bytes = 4 << 20};
    options.mechanisms = mechanisms;
    job_ = std::make_unique<SimulatedJob>(options);
  }

  SimulatedJob& job() { return *job_; }

  /// How long after its bound the call ended at each rank.
  std::vector<Duration> run() {
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      AllreduceArguments one = buffers_.arguments(rank, DataType::float32, ReduceOp::sum);
      one.mode = Mode::bounded;
      one.bound = kBound;
      calls.push_back(job_->submit(rank, one));
    }
    EXPECT_TRUE(job_->finish());
    std::vector<Duration> after;
    for (const auto& call : calls) {
      const Report& report = call->report;
      EXPECT_EQ(report.status, Status::partial) << report.detail;
      EXPECT_GT(report.lost_fraction, 0.2);
      EXPECT_LT(report.lost_fraction, 0.9) << "most of the time is left to the network";
      after.push_back(report.elapsed - report.clock_start - report.bound);
    }
    return after;
  }

 private:
  Buffers<float> buffers_{kRanks, kCount, false};
  std::unique_ptr<SimulatedJob> job_;
};

class WorkTimeTest : public testing::TestWithParam<CodecRule> {};

TEST_P(WorkTimeTest, a_call_that_is_cut_ends_by_its_bound) {
  Calls calls({.codec = GetParam()});
  for (int call = 0; call < 5; ++call) {
    for (const Duration after : calls.run()) EXPECT_LE(after, 500us) << call;
  }
}

/// As it does in memory that was never touched: 8 MiB of a shard take 80 ms then.
TEST(WorkTimeOfCopies, a_copy_that_takes_longer_than_known__is_given_up) {
  const auto last_end = [](bool retention) {
    Calls calls({.retention = retention});
    for (int call = 0; call < 5; ++call) calls.run();
    calls.job().slow_down(50);
    const std::vector<Duration> after = calls.run();
    return *std::max_element(after.begin(), after.end());
  };
  EXPECT_LT(last_end(true), last_end(false) + 20ms);
}

/// Peers ask a rank that has not begun whether it ended the call, and wait for an answer. A call
/// that took this wait for work would make the next one close its stages before the gather begins.
TEST(WorkTimeWithAbsentRank, waiting_for_answers_is_no_work) {
  constexpr std::uint16_t kWorld = 4;
  SimulatedJobOptions options{.ranks = kWorld, .slot_bytes = 1408, .piece_bytes = 64 << 10};
  options.links.emplace();
  options.links->ingress = {.bits_per_second = 10e9, .queue_bytes = 4 << 20};
  SimulatedJob job(options);
  Buffers<float> buffers(kWorld, kCount, false);
  std::vector<double> lost;
  for (int i = 0; i < 3; ++i) {
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank + 1 < kWorld; ++rank) {
      AllreduceArguments one = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
      one.mode = Mode::bounded;
      one.bound = 20ms;
      calls.push_back(job.submit(rank, one));
    }
    ASSERT_TRUE(job.finish());
    lost.push_back(calls[0]->report.lost_fraction);
  }
  EXPECT_NEAR(lost.front(), 1 - 3.0 / 16, 1e-9)
      << "how long the work takes is not known: no gather";
  EXPECT_LT(lost.back(), lost.front() - 0.05);
}

INSTANTIATE_TEST_SUITE_P(Codec, WorkTimeTest, testing::Values(CodecRule::off, CodecRule::on),
                         [](const auto& param) {
                           return param.param == CodecRule::on ? "on" : "off";
                         });

}  // namespace
}  // namespace tarpon::testing_support::work_time_test
