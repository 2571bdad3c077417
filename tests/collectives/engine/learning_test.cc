// Which calls of a job teach its bounds.
#include <gtest/gtest.h>

#include "collectives/engine/learning/bounds.h"
#include "tests/support/simulated_job.h"

namespace tarpon::testing_support::learning_test {
namespace {

constexpr std::uint64_t kCount = 100'000;

/// Every packet takes longer.
class Lag : public SimulatedTraffic {
 public:
  Route route(Time now, Rank, Rank, std::span<const std::byte>) override {
    return {.lost = {}, .not_before = now + 3ms};
  }
  void ended(Time, Rank, Rank, std::span<const std::byte>, std::string_view) override {}
};

/// One call of every rank, whose result is not looked at.
void call(SimulatedJob& job, DataType type, ReduceOp function, std::uint32_t tag) {
  Buffers<float> buffers(job.ranks(), kCount, true);
  for (Rank rank = 0; rank < job.ranks(); ++rank) {
    auto arguments = buffers.arguments(rank, type, function);
    arguments.tag = tag;
    arguments.mode = Mode::bounded;
    job.submit(rank, arguments);
  }
  ASSERT_TRUE(job.finish());
}

BoundPlan plan_of(SimulatedJob& job) {
  return job[0].learnt().bounds.plan({BoundRule::learnt, std::nullopt, {.bytes = kCount * 4}}, 10s);
}

TEST(LearningTest, learn__not_from_calls_that_always_run_exact) {
  SimulatedJob job({.ranks = 4, .links = FabricOptions{.ingress = {.bits_per_second = 1e9}}});
  for (int i = 0; i < 60; ++i) call(job, DataType::float32, ReduceOp::sum, 0);
  const BoundPlan learnt = plan_of(job);
  // As the comparison of results over all ranks makes them, beside the calls that it is about.
  Lag lag;
  job.network().watch(&lag);
  for (int i = 0; i < 20; ++i) {
    call(job, DataType::float32, ReduceOp::min, 1);
    call(job, DataType::float32, ReduceOp::max, 1);
    call(job, DataType::int32, ReduceOp::sum, 1);
  }
  const BoundPlan after = plan_of(job);
  EXPECT_LT(learnt.terms.whole, 1s);
  EXPECT_EQ(after.terms.whole, learnt.terms.whole);
  EXPECT_EQ(after.early, learnt.early);
  EXPECT_EQ(after.stage_time, learnt.stage_time);
  // Sums do: or this would show nothing.
  for (int i = 0; i < 20; ++i) call(job, DataType::float32, ReduceOp::sum, 2);
  EXPECT_NE(plan_of(job).terms.whole, learnt.terms.whole);
}

/// Teaches `bounds` that calls take `usual`.
void teach(Bounds& bounds, Duration usual) {
  const BoundSample sample{.kind = {.bytes = kCount * 4},
                           .elapsed = usual,
                           .stages = {usual * 6 / 10, usual},
                           .gather = usual * 4 / 10,
                           .straggler = std::nullopt,
                           .bounded = true,
                           .packets = 100};
  for (int call = 0; call < 50; ++call) bounds.learn(sample, BoundRule::learnt, std::nullopt);
}

/// Ranks 0 and 1 begin first. The others begin later, hear all terms before, and expect less.
TEST(LearningTest, agree__late_ranks_take_the_bound_of_the_half_that_began_first) {
  SimulatedJob job({.ranks = 4, .links = FabricOptions{.ingress = {.bits_per_second = 1e9}}});
  const Duration usual[] = {300ms, 400ms, 50ms, 60ms};
  for (Rank rank = 0; rank < 4; ++rank) teach(job[rank].learnt().bounds, usual[rank]);
  Buffers<float> buffers(4, kCount, true);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    if (rank >= 2) job.run_for(20ms);
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    calls.push_back(job.submit(rank, arguments));
  }
  ASSERT_TRUE(job.finish());
  EXPECT_GT(calls[0]->report.bound, 390ms) << "of ranks 0 and 1 alone";
  for (const auto& one : calls) {
    EXPECT_EQ(one->report.status, Status::complete);
    // READY tells microseconds.
    EXPECT_LE(std::chrono::abs(one->report.bound - calls[0]->report.bound), 1us);
  }
}

}  // namespace
}  // namespace tarpon::testing_support::learning_test
