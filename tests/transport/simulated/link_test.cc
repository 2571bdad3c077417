// One link: bandwidth, queue, bucket and policer to the nanosecond; shares of random loss; the
// tail.
#include "transport/simulated/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tarpon::link_test {
namespace {

constexpr double kGigabit = 1e9;  // 8 ns a byte

Passage delivered(Time time) {
  return {LinkFate::delivered, time};
}

void expect(const Passage& got, LinkFate fate, Time time) {
  EXPECT_EQ(static_cast<int>(got.fate), static_cast<int>(fate));
  EXPECT_EQ(got.time.time_since_epoch().count(), time.time_since_epoch().count());
}

void expect(const Passage& got, const Passage& wanted) {
  expect(got, wanted.fate, wanted.time);
}

TEST(LinkTest, enter__a_perfect_link_passes_at_once) {
  Link link({}, 1);
  for (int i = 0; i < 3; ++i) expect(link.enter(Time(5us), 9000), delivered(Time(5us)));
}

TEST(LinkTest, enter__one_packet_after_the_other_at_the_rate_then_the_delay) {
  Link link({.bits_per_second = kGigabit, .delay = 20us}, 1);
  expect(link.enter(Time(0us), 1000), delivered(Time(28us)));
  expect(link.enter(Time(1us), 1000), delivered(Time(36us)));
  expect(link.enter(Time(100us), 500), delivered(Time(124us)));
}

TEST(LinkTest, enter__fractions_of_a_nanosecond_add_up) {
  Link link({.bits_per_second = 25e9}, 1);  // 0.32 ns a byte
  Time last{};
  for (int i = 0; i < 1000; ++i) last = link.enter(Time{}, 100).time;
  EXPECT_EQ(last, Time(32us));
}

TEST(LinkTest, enter__what_does_not_fit_the_queue_is_dropped) {
  Link link({.bits_per_second = kGigabit, .queue_bytes = 2500}, 1);
  expect(link.enter(Time{}, 1000), delivered(Time(8us)));
  expect(link.enter(Time{}, 1000), delivered(Time(16us)));
  expect(link.enter(Time{}, 1000), LinkFate::queue, Time{});  // 3000 bytes before the wire
  expect(link.enter(Time{}, 500), delivered(Time(20us)));     // 2500 just fit
  // 3.999 us later 500 bytes and a little less are gone: one more does not fit yet.
  expect(link.enter(Time(3999ns), 500), LinkFate::queue, Time(3999ns));
  expect(link.enter(Time(4us), 500), delivered(Time(24us)));
}

TEST(LinkTest, enter__an_idle_link_takes_a_packet_larger_than_its_queue) {
  Link link({.bits_per_second = kGigabit, .queue_bytes = 100}, 1);
  expect(link.enter(Time{}, 1000), delivered(Time(8us)));
  expect(link.enter(Time(8us), 1000), delivered(Time(16us)));
  expect(link.enter(Time(9us), 1), LinkFate::queue, Time(9us));
}

TEST(LinkTest, enter__a_burst_passes_at_once_after_idleness) {
  Link link({.bits_per_second = kGigabit, .burst_bytes = 2000}, 1);
  expect(link.enter(Time(1ms), 1000), delivered(Time(1ms)));
  expect(link.enter(Time(1ms), 1000), delivered(Time(1ms)));
  expect(link.enter(Time(1ms), 1000), delivered(Time(1ms + 8us)));
  // 12 us later half of the bucket is full again.
  expect(link.enter(Time(1ms + 16us), 1000), delivered(Time(1ms + 16us)));
  expect(link.enter(Time(1ms + 16us), 1000), delivered(Time(1ms + 24us)));
}

TEST(LinkTest, enter__a_policer_drops_at_once_what_exceeds_its_bucket) {
  Link link({.policer_bits_per_second = kGigabit, .policer_burst_bytes = 2000, .delay = 1us}, 1);
  expect(link.enter(Time{}, 1000), delivered(Time(1us)));
  expect(link.enter(Time{}, 1000), delivered(Time(1us)));
  expect(link.enter(Time{}, 1), LinkFate::policer, Time{});
  expect(link.enter(Time(7999ns), 1000), LinkFate::policer, Time(7999ns));
  expect(link.enter(Time(8us), 1000), delivered(Time(9us)));  // what was dropped took no tokens
  expect(link.enter(Time(1s), 2001), LinkFate::policer, Time(1s));
  expect(link.enter(Time(1s), 2000), delivered(Time(1s + 1us)));
}

TEST(LinkTest, enter__lost_packets_take_their_time_on_the_wire) {
  Link link({.bits_per_second = kGigabit, .loss = 1}, 1);
  expect(link.enter(Time{}, 1000), LinkFate::loss, Time(8us));
  expect(link.enter(Time{}, 1000), LinkFate::loss, Time(16us));
}

double lost_share(const LinkOptions& options, int packets) {
  Link link(options, 7);
  int lost = 0;
  for (int i = 0; i < packets; ++i) lost += link.enter(Time{}, 1000).fate == LinkFate::loss;
  return static_cast<double>(lost) / packets;
}

TEST(LinkTest, loss__has_the_share_asked_for) {
  EXPECT_NEAR(lost_share({.loss = 0.05}, 200'000), 0.05, 0.002);
}

TEST(LinkTest, burst_loss__has_the_share_and_the_run_length_of_gilbert_and_elliott) {
  const LinkOptions options{.burst_loss_enter = 0.01, .burst_loss_leave = 0.2};
  EXPECT_NEAR(lost_share(options, 400'000), 0.01 / 0.21, 0.003);
  Link link(options, 3);
  int lost = 0, runs = 0;
  bool before = false;
  for (int i = 0; i < 400'000; ++i) {
    const bool now = link.enter(Time{}, 1000).fate == LinkFate::loss;
    lost += now;
    runs += now && !before;
    before = now;
  }
  EXPECT_NEAR(static_cast<double>(lost) / runs, 5.0, 0.2);
}

std::vector<std::int64_t> delays(double tail, std::uint64_t seed) {
  Link link({.tail = tail, .tail_median = 100us}, seed);
  std::vector<std::int64_t> result;
  for (int i = 0; i < 100'000; ++i) {
    result.push_back(link.enter(Time{}, 1000).time.time_since_epoch().count());
  }
  return result;
}

TEST(LinkTest, tail__has_the_median_and_the_ratio_asked_for) {
  for (const double tail : {1.5, 3.0, 10.0}) {
    std::vector<std::int64_t> all = delays(tail, 11);
    std::sort(all.begin(), all.end());
    const auto p50 = static_cast<double>(all[all.size() / 2]);
    const auto p99 = static_cast<double>(all[all.size() * 99 / 100]);
    EXPECT_NEAR(p50, 100'000, 1000) << tail;
    EXPECT_NEAR(p99 / p50, tail, tail * 0.06) << tail;
    EXPECT_LE(all.back(), std::chrono::nanoseconds(Pareto::kLongest).count());
  }
}

TEST(LinkTest, tail__of_one_is_the_median_always) {
  for (const std::int64_t delay : delays(1, 1)) EXPECT_NEAR(static_cast<double>(delay), 1e5, 1);
}

TEST(LinkTest, tail__the_same_numbers_with_every_compiler) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const std::int64_t delay : delays(3, 42)) {
    hash = (hash ^ static_cast<std::uint64_t>(delay)) * 1099511628211ull;
  }
  EXPECT_EQ(hash, 9056026198153710378u);
}

TEST(LinkTest, fixed_point__agrees_with_the_library) {
  for (double x = 1; x < 1e9; x *= 1.37) {
    const auto fixed = static_cast<std::uint64_t>(x * 0x1p32);
    EXPECT_NEAR(static_cast<double>(fixed_log2(fixed)) * 0x1p-32, std::log2(x), 1e-6) << x;
  }
  for (double x = 0; x < 30.9; x += 0.37) {
    const auto fixed = static_cast<std::uint64_t>(x * 0x1p32);
    EXPECT_NEAR(static_cast<double>(fixed_exp2(fixed)) * 0x1p-32 / std::exp2(x), 1, 1e-6) << x;
  }
}

}  // namespace
}  // namespace tarpon::link_test
