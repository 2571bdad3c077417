// The remaining time of a sweep, against sweeps whose time is known.
#include "tools/collective/work_estimate.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

namespace tarpon::work_estimate_test {
namespace {

struct Sweep {
  std::vector<std::uint64_t> sizes;
  std::uint32_t steps = 25;
  double latency = 100e-6;  // seconds a step
  double bytes_per_second = 1e9;
  double check = 3;  // in steps, after each item
  double noise = 0.1;
};

/// Every estimate that is shown has to be within `tolerance` of what is left. Returns how many
/// were.
int expect_close(const Sweep& sweep, double tolerance, double& first_shown) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(1 - sweep.noise, 1 + sweep.noise);
  struct Moment {
    double now;
    std::optional<double> left;
  };
  std::vector<Moment> moments;
  WorkEstimate estimate(sweep.sizes, sweep.steps);
  double now = 0;
  for (std::size_t item = 0; item < sweep.sizes.size(); ++item) {
    const double step =
        sweep.latency + static_cast<double>(sweep.sizes[item]) / sweep.bytes_per_second;
    for (std::uint32_t done = 1; done <= sweep.steps; ++done) {
      now += step * noise(random);
      estimate.update(done, now);
      moments.push_back({now, estimate.left()});
    }
    now += step * sweep.check;
    estimate.finish_item(now);
  }
  int shown = 0;
  first_shown = now;
  for (const Moment& moment : moments) {
    if (!moment.left) continue;
    EXPECT_GE(moment.now, 3.0);
    if (shown++ == 0) first_shown = moment.now;
    const double left = now - moment.now;
    EXPECT_NEAR(*moment.left, left, tolerance * left + 0.1) << "at " << moment.now << " of " << now;
  }
  return shown;
}

TEST(WorkEstimate, one_size__from_the_third_second_on) {
  Sweep sweep;
  sweep.sizes = {32 << 20, 32 << 20};
  sweep.bytes_per_second = 100e6;
  double first = 0;
  EXPECT_GT(expect_close(sweep, 0.3, first), 20);
  EXPECT_LT(first, 4);
}

TEST(WorkEstimate, doubling_sizes__within_30_percent) {
  Sweep sweep;
  for (std::uint64_t size = 8; size <= 128 << 20; size *= 2) {
    sweep.sizes.insert(sweep.sizes.end(), {size, size});
  }
  double first = 0;
  EXPECT_GT(expect_close(sweep, 0.3, first), 50);
  EXPECT_LT(first, 4);
}

TEST(WorkEstimate, rising_and_repeated_sizes) {
  Sweep sweep;
  for (int cycle = 0; cycle < 3; ++cycle) {
    for (std::uint64_t size = 1 << 20; size <= 16 << 20; size += 1 << 20) {
      sweep.sizes.insert(sweep.sizes.end(), {size, size});
    }
  }
  sweep.steps = 5;
  double first = 0;
  EXPECT_GT(expect_close(sweep, 0.4, first), 50);
}

TEST(WorkEstimate, small_sizes__say_nothing_about_large_ones) {
  WorkEstimate estimate({8, 1 << 30}, 10);
  for (std::uint32_t done = 1; done <= 10; ++done) estimate.update(done, done);
  EXPECT_FALSE(estimate.left());
  WorkEstimate empty({}, 10);
  empty.update(1, 5);
  EXPECT_FALSE(empty.left());
}

}  // namespace
}  // namespace tarpon::work_estimate_test
