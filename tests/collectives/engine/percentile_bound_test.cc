// OptiReduce's bound: the 95th percentile of 20 exact calls.
#include "collectives/engine/learning/percentile_bound.h"

#include <gtest/gtest.h>

namespace tarpon::percentile_bound_test {
namespace {

constexpr CallKind kKind{.bytes = 25 << 20};

BoundedCall call(const CallKind& kind = kKind) {
  return {.rule = BoundRule::optireduce, .limit = std::nullopt, .kind = kind};
}

BoundSample exact(Duration whole, const CallKind& kind = kKind) {
  BoundSample result;
  result.kind = kind;
  result.elapsed = whole;
  return result;
}

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

TEST(PercentileBoundTest, whole__is_the_95th_percentile_of_the_first_twenty) {
  PercentileBound bound;
  for (int i = 1; i <= 50; ++i) bound.learn(exact(i <= 20 ? i * 10ms : 900ms));
  EXPECT_NEAR(milliseconds(bound.whole(call(), 10s)), 190, 0.1);
}

TEST(PercentileBoundTest, whole__without_calls_of_the_size_class_takes_all_that_is_left) {
  PercentileBound bound;
  bound.learn(exact(100ms));
  EXPECT_EQ(bound.whole(call({.bytes = 1 << 20}), 3s), 3s);
  EXPECT_EQ(bound.whole(call(), 50ms), 50ms);
}

TEST(PercentileBoundTest, whole__is_scaled_by_size_and_leaves_each_stage_1_ms) {
  PercentileBound bound;
  bound.learn(exact(100ms));
  EXPECT_NEAR(milliseconds(bound.whole(call({.bytes = 30 << 20}), 10s)), 120, 0.1);
  PercentileBound small;
  small.learn(exact(100us, {.bytes = 1000}));
  EXPECT_EQ(small.whole(call({.bytes = 1000}), 10s), 2ms);
}

TEST(PercentileBoundTest, whole__the_callers_bound_has_no_effect) {
  PercentileBound bound;
  bound.learn(exact(100ms));
  BoundedCall limited = call();
  limited.limit = 10ms;
  EXPECT_NEAR(milliseconds(bound.whole(limited, 10s)), 100, 0.1);
}

TEST(PercentileBoundTest, gather__is_half) {
  EXPECT_EQ(PercentileBound().gather(call(), 90ms), 45ms);
}

TEST(PercentileBoundTest, early_loss__is_the_lost_share) {
  BoundSample sample = exact(100ms);
  sample.lost = 0.25;
  sample.early_lost = 0.5;
  EXPECT_EQ(PercentileBound().early_loss(sample).share, 0.25);
}

}  // namespace
}  // namespace tarpon::percentile_bound_test
