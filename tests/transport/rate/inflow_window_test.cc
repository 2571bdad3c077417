// When a window is held to share its link with others.
#include "transport/rate/inflow_window.h"

#include <gtest/gtest.h>

namespace tarpon::inflow_window_test {
namespace {

InflowWindow window() {
  InflowWindow window(256 << 10, 32 << 10, 16 << 20);
  window.shrink({.loss = 0.1, .excess = 0.1, .bytes_per_second = 250e6});  // no longer starting
  return window;
}

/// All of a link, of which the queue holds 1.5 ms.
constexpr InflowInterval kAlone{.bytes_per_second = 250e6,
                                .best = 250e6,
                                .round_trip = 1.6e-3,
                                .wait = 1.5e-3,
                                .least_wait = 1e-3,
                                .queued = true,
                                .steady = true};

InflowInterval at(double bytes_per_second) {
  InflowInterval interval = kAlone;
  interval.bytes_per_second = bytes_per_second;
  return interval;
}

bool crowded_after(InflowWindow& window, const InflowInterval& interval, int times) {
  for (int i = 0; i < times; ++i) window.look_for_others(interval);
  return window.crowded();
}

TEST(InflowWindowTest, alone__is_not_crowded) {
  InflowWindow one = window();
  EXPECT_FALSE(crowded_after(one, kAlone, 100));
}

TEST(InflowWindowTest, less_than_lately_in_as_long_a_queue__others_have_come) {
  InflowWindow one = window();
  crowded_after(one, kAlone, 10);
  EXPECT_TRUE(crowded_after(one, at(100e6), 1));
  EXPECT_FALSE(crowded_after(one, kAlone, 1));
}

/// Bytes a second: a rate that shows others only while others are expected.
constexpr double kNearlyAll = 200e6;

TEST(InflowWindowTest, others_that_stayed__are_expected_to_come_back) {
  InflowWindow one = window();
  crowded_after(one, kAlone, 10);
  crowded_after(one, at(100e6), 3);
  EXPECT_FALSE(crowded_after(one, kAlone, 5)) << "the whole link is ours";
  EXPECT_TRUE(crowded_after(one, at(kNearlyAll), 1));
  EXPECT_FALSE(crowded_after(one, kAlone, 32));
  EXPECT_FALSE(crowded_after(one, at(kNearlyAll), 1)) << "they have not come for long";
}

TEST(InflowWindowTest, less_than_lately_once__may_have_been_a_busy_processor) {
  InflowWindow one = window();
  crowded_after(one, kAlone, 10);
  crowded_after(one, at(100e6), 2);
  EXPECT_FALSE(crowded_after(one, at(kNearlyAll), 1));
}

TEST(InflowWindowTest, less_than_lately_for_long__the_link_is_slower) {
  InflowWindow one = window();
  crowded_after(one, kAlone, 10);
  EXPECT_FALSE(crowded_after(one, at(100e6), 64));
}

TEST(InflowWindowTest, less_than_lately_in_a_queue_that_empties__is_our_own_bursts) {
  InflowWindow one = window();
  crowded_after(one, kAlone, 10);
  InflowInterval bursts = at(100e6);
  bursts.least_wait = 0.1e-3;
  EXPECT_FALSE(crowded_after(one, bursts, 1));
}

TEST(InflowWindowTest, less_than_lately_since_senders_paused__says_nothing) {
  InflowWindow one = window();
  crowded_after(one, kAlone, 10);
  InflowInterval paused = at(100e6);
  paused.steady = false;
  EXPECT_FALSE(crowded_after(one, paused, 1));
}

TEST(InflowWindowTest, crowded__grows_to_half_as_much_again_as_the_queue) {
  InflowWindow one = window();
  crowded_after(one, kAlone, 10);
  const InflowInterval beside = at(100e6);
  for (int i = 0; i < 60; ++i) {
    one.look_for_others(kAlone);  // the link is still as fast
    one.look_for_others(beside);
    one.grow(beside);
  }
  EXPECT_GT(one.bytes(), 400'000u);
  EXPECT_LT(one.bytes(), 2 * 400'000u);
}

}  // namespace
}  // namespace tarpon::inflow_window_test
