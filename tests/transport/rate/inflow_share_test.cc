// Whether the rate follows the window: the share of a link that is ours.
#include "transport/rate/inflow_share.h"

#include <gtest/gtest.h>

#include "transport/random.h"

namespace tarpon::inflow_share_test {
namespace {

constexpr double kWindow = 300e3, kLink = 250e6;
constexpr double kCrowded = 0.85;  // as InflowWindow's

struct Beside {
  double others = 0;  // bytes of others in the queue
  double noise = 0;   // share by which rates err at most
  int intervals = 100;
};

double share_beside(const Beside& beside, std::uint64_t seed = 3) {
  InflowShare share;
  Random random(seed);
  for (int i = 0; i < beside.intervals; ++i) {
    const double window = kWindow * share.factor();
    const double chance = (static_cast<double>(random.below(2001)) - 1000) / 1000;
    const double rate = kLink * window / (window + beside.others);
    share.observe(window, (1 + beside.noise * chance) * rate, true);
  }
  return share.share();
}

/// Of 100 links: those where others are taken to have a part.
int crowded_of_100(const Beside& beside) {
  int crowded = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    crowded += share_beside(beside, seed) < kCrowded;
  }
  return crowded;
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
  EXPECT_DOUBLE_EQ(share_beside({}), 1);
  EXPECT_GT(share_beside({.noise = 0.02}), 0.9);
}

TEST(InflowShareTest, others__the_rate_follows_the_window_by_their_share) {
  EXPECT_NEAR(share_beside({.others = 100e3, .intervals = 300}), 0.75, 0.02);
  EXPECT_NEAR(share_beside({.others = 300e3, .intervals = 300}), 0.5, 0.02);
  const double with_chance = share_beside({.others = 300e3, .noise = 0.05, .intervals = 300});
  EXPECT_GT(with_chance, 0.45) << "the largest share that fits";
  EXPECT_LT(with_chance, 0.75);
}

// A busy processor changes rates by more than a step of the window does.
TEST(InflowShareTest, rates_change_by_chance__only_others_make_the_link_crowded) {
  EXPECT_LE(crowded_of_100({.others = 0, .noise = 0.25, .intervals = 300}), 1);
  EXPECT_GE(crowded_of_100({.others = 600e3, .noise = 0.15, .intervals = 300}), 85);
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
