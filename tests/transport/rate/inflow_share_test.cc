// Whether the rate follows the window: the share of a link that is ours.
#include "transport/rate/inflow_share.h"

#include <gtest/gtest.h>

#include "transport/random.h"

namespace tarpon::inflow_share_test {
namespace {

constexpr double kWindow = 300e3, kLink = 250e6;

/// After 100 intervals beside others with `others` bytes in the queue; rates err by `noise`.
double share_beside(double others, double noise = 0) {
  InflowShare share;
  Random random(3);
  for (int i = 0; i < 100; ++i) {
    const double window = kWindow * share.factor();
    const double error = 1 + noise * (static_cast<double>(random.below(2001)) - 1000) / 1000;
    share.observe(window, error * kLink * window / (window + others), true);
  }
  return share.share();
}

TEST(LatelyFastestTest, lately_fastest__forgets_after_32_to_64) {
  LatelyFastest fastest;
  fastest.observe(7);
  int remembered = 0;
  for (; fastest.rate() == 7; ++remembered) fastest.observe(1);
  EXPECT_GE(remembered, 32);
  EXPECT_LE(remembered, 64);
  EXPECT_EQ(fastest.rate(), 1);
}

TEST(InflowShareTest, nothing_known__all_is_ours) {
  EXPECT_EQ(InflowShare().share(), 1);
}

TEST(InflowShareTest, alone__the_rate_is_the_links_whatever_the_window) {
  EXPECT_DOUBLE_EQ(share_beside(0), 1);
  EXPECT_GT(share_beside(0, 0.02), 0.9);
}

TEST(InflowShareTest, others__the_rate_follows_the_window_by_their_share) {
  EXPECT_NEAR(share_beside(100e3), 0.75, 0.03);
  EXPECT_NEAR(share_beside(300e3), 0.5, 0.03);
  EXPECT_NEAR(share_beside(300e3, 0.05), 0.5, 0.15);
}

TEST(InflowShareTest, pauses_of_senders__say_nothing) {
  InflowShare share;
  for (int i = 0; i < 100; ++i) {
    const bool pause = i % 3 == 0;
    const double window = kWindow * share.factor();
    share.observe(window, pause ? kLink / 10 : kLink, !pause);
  }
  EXPECT_DOUBLE_EQ(share.share(), 1);
}

}  // namespace
}  // namespace tarpon::inflow_share_test
