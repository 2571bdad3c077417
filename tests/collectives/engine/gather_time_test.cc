// Where a bounded call divides its time between scatter and gather.
#include "collectives/engine/learning/gather_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

#include "transport/random.h"

namespace tarpon::gather_time_test {
namespace {

constexpr double kMargin = 2;
constexpr std::uint32_t kRanks = 4;

TEST(GatherTimeTest, margin__no_more_than_the_longest_scatter_leaves) {
  GatherTime times(kRanks);
  EXPECT_TRUE(times.empty());
  for (int call = 1; call <= 100; ++call) times.learn(80, 10);
  EXPECT_FALSE(times.empty());
  EXPECT_DOUBLE_EQ(times.split(110, kMargin), 10 + kMargin);
  EXPECT_DOUBLE_EQ(times.split(92, kMargin), 10 + 1) << "half of what is left";
  EXPECT_DOUBLE_EQ(times.split(90, kMargin), 10) << "nothing is left";
}

/// A rank that waits for another one in every call has the others' shards before its own is ready.
TEST(GatherTimeTest, scatters_that_are_cut_in_every_call__leave_time_for_the_shard) {
  GatherTime times(kRanks);
  for (int call = 0; call < 100; ++call) times.learn(150, 0);
  EXPECT_DOUBLE_EQ(times.split(100, kMargin), kMargin);
}

TEST(GatherTimeTest, one_of_n_gathers_is_cut) {
  for (const std::uint32_t ranks : {2u, 4u, 10u}) {
    GatherTime times(ranks);
    for (int call = 1; call <= 100; ++call) times.learn(80, call);
    EXPECT_DOUBLE_EQ(times.split(1000, 0), 100 - 100 / ranks);
  }
}

TEST(GatherTimeTest, at_most_half_of_the_bound) {
  GatherTime times(kRanks);
  times.learn(5, 100);
  EXPECT_DOUBLE_EQ(times.split(110, kMargin), 55);
  EXPECT_DOUBLE_EQ(times.split(1, kMargin), 0.5);
}

/// The first calls of a job take long; one such gather must not cost all later scatters their end.
TEST(GatherTimeTest, one_long_gather__cuts_no_usual_scatter) {
  GatherTime times(kRanks);
  times.learn(20, 20);
  for (int call = 0; call < 8; ++call) times.learn(25, 2);
  EXPECT_LE(times.split(29, kMargin), 29 - 25);
}

TEST(GatherTimeTest, old_calls__are_forgotten) {
  GatherTime times(kRanks);
  for (int call = 0; call < 100; ++call) times.learn(10, 40);
  for (int call = 0; call < 100; ++call) times.learn(80, 10);
  EXPECT_DOUBLE_EQ(times.split(110, kMargin), 10 + kMargin);
}

/// Where processor time is short, scatter and gather of a call share it: the sum is about constant.
TEST(GatherTimeTest, short_scatters_with_long_gathers__say_nothing_of_late_scatters) {
  GatherTime times(kRanks);
  for (int call = 0; call < 100; ++call) times.learn(110 + call * 0.6, 70 - call * 0.6);
  EXPECT_LE(times.split(200, kMargin), 200 - 170) << "no scatter is cut";
}

/// Against all divisions of a bound that cuts some calls: no other one loses much less.
TEST(GatherTimeTest, little_is_lost) {
  Random random(5);
  const auto lognormal = [&random](double median) {
    const auto uniform = [&random] {
      return (static_cast<double>(random.below(1 << 20)) + 0.5) / (1 << 20);
    };
    return median * std::exp(0.3 * std::sqrt(-2 * std::log(uniform())) *
                             std::cos(2 * std::numbers::pi * uniform()));
  };
  for (const bool together : {false, true}) {  // the gather takes long where the scatter does
    GatherTime times(kRanks);
    std::vector<std::pair<double, double>> calls(100);
    for (auto& [scatter, gather] : calls) {
      scatter = lognormal(80);
      gather = together ? scatter / 4 : lognormal(20);
      times.learn(scatter, gather);
    }
    const double whole = 120;
    const auto lost = [&](double gather_time) {
      double sum = 0;
      for (const auto& [scatter, gather] : calls) {
        const double closed = std::min(scatter, whole - gather_time);
        sum += scatter - closed + kRanks * std::max(0.0, closed + gather - whole);
      }
      return sum;
    };
    double least = lost(0);
    for (double other = 0; other <= whole / 2; other += 0.01) least = std::min(least, lost(other));
    EXPECT_LE(lost(times.split(whole, 0)), 1.1 * least) << together;
  }
}

}  // namespace
}  // namespace tarpon::gather_time_test
