// What bounded operations are given, learnt from those before them.
#include "collectives/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "transport/random.h"

namespace tarpon {
namespace {

constexpr std::uint64_t kBytes = 25 << 20;

BoundSample sample(Duration whole, std::uint64_t bytes = kBytes) {
  BoundSample result;
  result.bytes = bytes;
  result.elapsed = {whole * 8 / 10, whole};
  result.bounded = true;
  result.packets = 10'000;
  return result;
}

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

Duration whole(const StageBounds& bounds) {
  return bounds.bound[0] + bounds.bound[1];
}

TEST(BoundsTest, given__is_taken_and_never_above_half_of_what_is_left) {
  const Bounds bounds(4);
  EXPECT_EQ(bounds.plan(BoundRule::given, 30ms, kBytes, 10s).bound[0], 30ms);
  EXPECT_EQ(bounds.plan(BoundRule::given, 30s, kBytes, 10s).bound[1], 5s);
  EXPECT_EQ(bounds.plan(BoundRule::given, std::nullopt, kBytes, 10s).bound[0], 5s);
}

TEST(BoundsTest, hardly_any_time_left__is_halved_all_the_same) {
  Bounds bounds(4);
  for (int i = 0; i < 20; ++i) bounds.learn(sample(100ms), BoundRule::per_byte);
  for (const BoundRule rule : {BoundRule::per_byte, BoundRule::optireduce}) {
    EXPECT_EQ(bounds.plan(rule, std::nullopt, kBytes, 1ms).bound[0], 500us);
  }
}

TEST(BoundsTest, longer_than_the_header_can_say__is_not_said_and_not_cut) {
  Bounds bounds(4);
  for (int i = 0; i < 5; ++i) bounds.learn(sample(4s), BoundRule::per_byte);
  for (Rank peer = 1; peer < 4; ++peer) bounds.heard(peer, kBytes, 0xffff);
  const StageBounds plan = bounds.plan(BoundRule::per_byte, std::nullopt, kBytes, 60s);
  EXPECT_EQ(plan.stage_time, 0);
  EXPECT_GT(whole(plan), 4s);
}

TEST(BoundsTest, operations_that_took_no_time__teach_no_bound) {
  Bounds bounds(4);
  for (int i = 0; i < 9; ++i) bounds.learn(sample(Duration::zero()), BoundRule::per_byte);
  EXPECT_EQ(bounds.plan(BoundRule::per_byte, std::nullopt, kBytes, 10s).bound[0], 5s);
}

TEST(BoundsTest, nothing_known__no_early_close_and_no_expectation) {
  const Bounds bounds(4);
  const StageBounds plan = bounds.plan(BoundRule::per_byte, std::nullopt, kBytes, 10s);
  EXPECT_EQ(plan.bound[0], 5s);
  EXPECT_EQ(plan.early[0], Duration::zero());
  EXPECT_EQ(plan.stage_time, 0);
}

TEST(BoundsTest, per_byte__is_the_usual_time_and_a_margin) {
  Bounds bounds(4);
  for (int i = 0; i < 5; ++i) bounds.learn(sample(100ms), BoundRule::per_byte);
  const StageBounds plan = bounds.plan(BoundRule::per_byte, std::nullopt, kBytes, 10s);
  EXPECT_NEAR(milliseconds(plan.bound[0]), 80 + 100 * bounds.margin(), 0.1);
  // After a straggler in stage 1 half of the traffic is still to go.
  EXPECT_NEAR(milliseconds(plan.bound[1]), 50 * (1 + bounds.margin()), 0.1);
  EXPECT_NEAR(plan.stage_time * 16, 100'000, 100);
  const StageBounds half = bounds.plan(BoundRule::per_byte, std::nullopt, kBytes / 2, 10s);
  EXPECT_NEAR(milliseconds(whole(half)), milliseconds(whole(plan)) / 2, 0.1);
}

TEST(BoundsTest, per_byte__is_above_the_longest_of_the_last_20) {
  Bounds bounds(4);
  for (int i = 0; i < 5; ++i) bounds.learn(sample(100ms), BoundRule::per_byte);
  bounds.learn(sample(200ms), BoundRule::per_byte);
  const auto first = [&bounds] {
    return milliseconds(bounds.plan(BoundRule::per_byte, std::nullopt, kBytes, 10s).bound[0]);
  };
  for (int i = 0; i < 19; ++i) {
    EXPECT_NEAR(first(), 80 + 120, 0.1);
    bounds.learn(sample(100ms), BoundRule::per_byte);
  }
  bounds.learn(sample(100ms), BoundRule::per_byte);
  EXPECT_NEAR(first(), 80 + 100 * bounds.margin(), 0.1);
  for (int i = 0; i < 4; ++i) bounds.learn(sample(2000ms), BoundRule::per_byte);
  EXPECT_NEAR(first(), 80 + 300, 0.1);
}

TEST(BoundsTest, optireduce__is_the_95th_percentile_of_the_first_twenty) {
  Bounds bounds(4);
  for (int i = 1; i <= 20; ++i) bounds.learn(sample(i * 10ms), BoundRule::optireduce);
  for (int i = 0; i < 30; ++i) bounds.learn(sample(900ms), BoundRule::optireduce);
  const StageBounds plan = bounds.plan(BoundRule::optireduce, std::nullopt, kBytes, 10s);
  EXPECT_NEAR(milliseconds(whole(plan)), 190, 0.1);
}

TEST(BoundsTest, peers__the_median_over_ranks_counts) {
  Bounds bounds(4);
  for (int i = 0; i < 5; ++i) bounds.learn(sample(300ms), BoundRule::per_byte);
  for (Rank peer = 1; peer < 4; ++peer) bounds.heard(peer, kBytes, 100'000 / 16);
  const StageBounds plan = bounds.plan(BoundRule::per_byte, std::nullopt, kBytes, 10s);
  const double margin = 100 * bounds.margin();
  EXPECT_NEAR(milliseconds(whole(plan)), 80 + margin + (100 + margin) / 2, 0.2);
}

TEST(BoundsTest, quiet_busy_quiet__is_followed_within_20_operations_without_swinging) {
  Bounds bounds(4);
  Random random(7);
  const auto jitter = [&random](Duration usual) {
    return usual * static_cast<std::int64_t>(95 + random.below(11)) / 100;
  };
  const auto run = [&](Duration usual, int operations) {
    for (int i = 0; i < operations; ++i) {
      const StageBounds plan = bounds.plan(BoundRule::per_byte, std::nullopt, kBytes, 10s);
      const Duration needed = jitter(usual);
      BoundSample one = sample(std::min(needed, whole(plan)));
      if (needed > whole(plan)) {
        one.closing = {Closing::bound, Closing::bound};
        const double share =
            static_cast<double>(whole(plan).count()) / static_cast<double>(needed.count());
        one.received = {share, share};
      }
      bounds.learn(one, BoundRule::per_byte);
    }
    return whole(bounds.plan(BoundRule::per_byte, std::nullopt, kBytes, 10s));
  };
  const Duration quiet = run(100ms, 30);
  EXPECT_LT(quiet, 160ms);
  const Duration busy = run(300ms, 20);
  EXPECT_GT(busy, 300ms);
  EXPECT_LT(busy, 750ms);
  const Duration again = run(100ms, 20);
  EXPECT_LT(again, 250ms);
  EXPECT_GT(again, 100ms);
}

TEST(BoundsTest, patience__follows_what_came_late_and_not_what_was_lost) {
  Bounds bounds(4);
  BoundSample late = sample(100ms);
  late.late = 0.01;
  bounds.learn(late, BoundRule::per_byte);
  EXPECT_DOUBLE_EQ(bounds.patience(), 0.2);
  for (int i = 0; i < 5; ++i) bounds.learn(late, BoundRule::per_byte);
  EXPECT_DOUBLE_EQ(bounds.patience(), 0.5);
  BoundSample lost = sample(100ms);
  lost.received = {0.99, 0.99};
  lost.closing = {Closing::early, Closing::early};
  for (int i = 0; i < 60; ++i) bounds.learn(lost, BoundRule::per_byte);
  EXPECT_DOUBLE_EQ(bounds.patience(), 0.01);
  bounds.learn(lost, BoundRule::optireduce);
  EXPECT_DOUBLE_EQ(bounds.patience(), 0.02);
}

TEST(BoundsTest, margin__grows_while_bounds_cut_off_too_much) {
  Bounds bounds(4);
  const double before = bounds.margin();
  BoundSample cut = sample(100ms);
  cut.closing = {Closing::complete, Closing::bound};
  cut.received = {1, 0.9};
  for (int i = 0; i < 3; ++i) bounds.learn(cut, BoundRule::per_byte);
  EXPECT_GT(bounds.margin(), 2 * before);
  for (int i = 0; i < 300; ++i) bounds.learn(sample(100ms), BoundRule::per_byte);
  EXPECT_DOUBLE_EQ(bounds.margin(), 0.10);
}

}  // namespace
}  // namespace tarpon
