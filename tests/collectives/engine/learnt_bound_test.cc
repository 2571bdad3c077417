// The learnt bound of one rank, by kind of call. target_bound_test.cc: the bound of one kind.
#include "collectives/engine/learning/learnt_bound.h"

#include <gtest/gtest.h>

namespace tarpon::learnt_bound_test {
namespace {

constexpr double kTarget = 0.001;
constexpr CallKind kKind{.bytes = 25 << 20};

BoundedCall call(std::optional<Duration> limit, BoundRule rule = BoundRule::learnt) {
  return {.rule = rule, .limit = limit, .kind = kKind};
}

BoundSample sample(Duration whole) {
  BoundSample result;
  result.kind = kKind;
  result.elapsed = whole;
  result.stages = {whole * 8 / 10, whole};
  result.gather = whole * 2 / 10;
  result.bounded = true;
  return result;
}

LearntBound learnt(int calls) {
  LearntBound bound(4, kTarget);
  for (int i = 0; i < calls; ++i) {
    bound.learn_gather(sample(100ms));
    bound.learn(sample(100ms), 0, std::nullopt);
  }
  return bound;
}

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

TEST(LearntBoundTest, whole__is_known_after_fifty_calls) {
  EXPECT_EQ(learnt(49).whole(call({}), 10s), 10s);
  EXPECT_NEAR(milliseconds(learnt(50).whole(call({}), 10s)), 110, 0.1);
}

TEST(LearntBoundTest, whole__a_limit_is_a_maximum_and_alone_the_bound) {
  const LearntBound bound = learnt(50);
  EXPECT_EQ(bound.whole(call(30ms), 10s), 30ms);
  EXPECT_NEAR(milliseconds(bound.whole(call(1s), 10s)), 110, 0.1);
  EXPECT_EQ(bound.whole(call(1s, BoundRule::automatic), 10s), 1s);
  EXPECT_EQ(bound.whole(call(1s, BoundRule::automatic), 500ms), 500ms);
}

TEST(LearntBoundTest, gather__a_tenth_or_two_milliseconds_until_calls_of_the_kind_are_known) {
  const LearntBound fresh(4, kTarget);
  EXPECT_EQ(fresh.gather(call({}), 100ms), 10ms);
  EXPECT_EQ(fresh.gather(call({}), 15ms), 2ms);
  EXPECT_EQ(fresh.gather(call({}), 3ms), 1500us) << "half is the scatter's";
  EXPECT_LE(learnt(1).gather(call({}), 100ms), 25ms);
  EXPECT_GE(learnt(1).gather(call({}), 100ms), 20ms) << "the time of the gather";
}

TEST(LearntBoundTest, early_loss__is_the_share_that_came_too_late) {
  BoundSample late = sample(100ms);
  late.lost = 0.5;
  late.early_lost = 0.25;
  const EarlyLoss loss = LearntBound(4, kTarget).early_loss(late);
  EXPECT_EQ(loss.share, 0.25);
  EXPECT_DOUBLE_EQ(loss.high, kTarget / 10);
  EXPECT_DOUBLE_EQ(loss.low, kTarget / 100);
}

}  // namespace
}  // namespace tarpon::learnt_bound_test
