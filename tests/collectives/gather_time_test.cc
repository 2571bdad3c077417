// Where a bounded call divides its time between scatter and gather.
#include "collectives/learning/gather_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "transport/random.h"

namespace tarpon {
namespace {

constexpr double kMargin = 2;

TEST(GatherTimeTest, nothing_cut__the_scatter_closes_as_late_as_the_gather_allows) {
  GatherTime times;
  EXPECT_TRUE(times.empty());
  for (int call = 1; call <= 100; ++call) times.learn(80, call * 0.1);
  EXPECT_FALSE(times.empty());
  EXPECT_DOUBLE_EQ(times.split(110, kMargin), 10 + kMargin);
  EXPECT_DOUBLE_EQ(times.split(92, kMargin), 10 + 1) << "half of the range";
}

TEST(GatherTimeTest, at_most_half_of_the_bound) {
  GatherTime times;
  times.learn(5, 100);
  EXPECT_DOUBLE_EQ(times.split(110, kMargin), 55);
  EXPECT_DOUBLE_EQ(times.split(1, kMargin), 0) << "nothing but the scatter fits";
}

/// The first calls of a job take long; one such gather must not cost all later scatters their end.
TEST(GatherTimeTest, one_long_gather__cuts_no_usual_scatter) {
  GatherTime times;
  times.learn(20, 20);
  for (int call = 0; call < 8; ++call) times.learn(25, 2);
  EXPECT_LE(times.split(29, kMargin), 29 - 25);
}

TEST(GatherTimeTest, old_calls__are_forgotten) {
  GatherTime times;
  for (int call = 0; call < 100; ++call) times.learn(10, 40);
  for (int call = 0; call < 100; ++call) times.learn(80, 10);
  EXPECT_DOUBLE_EQ(times.split(110, kMargin), 10 + kMargin);
}

/// Against all divisions: no other one cuts less time from the known calls.
TEST(GatherTimeTest, as_much_is_cut_as_has_to_be) {
  Random random(5);
  const auto lognormal = [&random](double median) {
    const auto uniform = [&random] {
      return (static_cast<double>(random.below(1 << 20)) + 0.5) / (1 << 20);
    };
    return median * std::exp(0.3 * std::sqrt(-2 * std::log(uniform())) *
                             std::cos(2 * std::numbers::pi * uniform()));
  };
  GatherTime times;
  std::vector<std::pair<double, double>> calls(100);
  for (auto& [scatter, gather] : calls) {
    scatter = lognormal(80);
    gather = lognormal(20);
    times.learn(scatter, gather);
  }
  const double whole = 100;
  const auto cut = [&](double gather_time) {
    double sum = 0;
    for (const auto& [scatter, gather] : calls) {
      sum += std::max(0.0, scatter - (whole - gather_time)) + std::max(0.0, gather - gather_time);
    }
    return sum;
  };
  double least = cut(0);
  for (double other = 0; other <= whole / 2; other += 0.01) least = std::min(least, cut(other));
  EXPECT_LE(cut(times.split(whole, kMargin)), least + 1e-6);
}

}  // namespace
}  // namespace tarpon
