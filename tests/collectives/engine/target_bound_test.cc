// The learnt bound against the bound that knows the distribution of the calls.
#include "collectives/engine/learning/target_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "transport/random.h"

namespace tarpon::target_bound_test {
namespace {

constexpr int kRuns = 20;
constexpr int kCalls = 2000;
constexpr int kSettling = 200;  // calls that are not counted
constexpr int kStep = 1000;     // the call at which times change

double uniform(Random& random) {
  return (static_cast<double>(random.below(1u << 30)) + 0.5) / (1u << 30);
}

/// Lognormal with median 1.
double lognormal(Random& random, double sigma) {
  const double radius = std::sqrt(-2 * std::log(uniform(random)));
  return std::exp(sigma * radius * std::cos(2 * std::numbers::pi * uniform(random)));
}

bool happens(Random& random, double share) {
  return uniform(random) < share;
}

/// How long call `number` of a run takes.
using Times = std::function<double(Random&, int number)>;

/// Losses of one call with bound `bound` that would take `time`.
double lost_share(double time, double bound) {
  return std::max(0.0, 1 - bound / time);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

double quantile(std::vector<double> values, double share) {
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

/// The shortest bound with that mean loss, at least 1.1 x the median and the 90th percentile, from
/// all that is to know of how long call `number` may take.
double oracle(const Times& times, int number, double target) {
  Random random(99);
  std::vector<double> all(100'000);
  for (double& one : all) one = times(random, number);
  double low = 0, high = *std::max_element(all.begin(), all.end());
  for (int i = 0; i < 40; ++i) {
    const double bound = (low + high) / 2;
    double lost = 0;
    for (const double time : all) lost += lost_share(time, bound);
    (lost / static_cast<double>(all.size()) <= target ? high : low) = bound;
  }
  return std::max({high, 1.1 * median(all), quantile(all, 0.9)});
}

struct Outcome {
  double lost = 0;   // mean over calls and runs
  double bound = 0;  // the median at the end of the runs
  double mean = 0;   // time of a call, over calls and runs
  double p99 = 0;
};

/// `ranks` see times of their own: each call's time x up to 10 % more. All use the upper median of
/// their bounds.
Outcome run(const Times& times, double target, int ranks = 1) {
  Outcome outcome;
  std::vector<double> bounds, taken;
  for (int seed = 0; seed < kRuns; ++seed) {
    Random random(static_cast<std::uint64_t>(seed) * 77 + 5);
    std::vector<TargetBound> learners(static_cast<std::size_t>(ranks), TargetBound(target));
    for (int call = 0; call < kCalls; ++call) {
      std::vector<double> told;
      for (const TargetBound& one : learners) told.push_back(one.bound().value_or(1e9));
      const double bound = median(told);
      const double time = times(random, call);
      double lost = 0;
      for (TargetBound& one : learners) {
        const double own = ranks == 1 ? time : time * (1 + 0.1 * uniform(random));
        const double own_lost = lost_share(own, bound);
        lost = std::max(lost, own_lost);
        one.learn(std::min(own, bound), own_lost);
      }
      for (TargetBound& one : learners) one.account(lost);
      if (call < kSettling) continue;
      constexpr double kCounted = kRuns * (kCalls - kSettling);
      outcome.lost += lost / kCounted;
      taken.push_back(std::min(time, bound));
      if (call >= kStep + kSettling) bounds.push_back(bound);
    }
  }
  outcome.bound = median(bounds);
  outcome.mean =
      std::accumulate(taken.begin(), taken.end(), 0.0) / static_cast<double>(taken.size());
  outcome.p99 = quantile(taken, 0.99);
  return outcome;
}

/// Mean and 99th percentile of the calls' times with the oracle's bound for each.
Outcome best(const Times& times, double target) {
  const double first = oracle(times, 0, target), last = oracle(times, kCalls - 1, target);
  Random random(98);
  std::vector<double> taken;
  for (int i = 0; i < 200'000; ++i) {
    const int call = kSettling + i % (kCalls - kSettling);
    taken.push_back(std::min(times(random, call), call < kStep ? first : last));
  }
  Outcome outcome;
  outcome.mean =
      std::accumulate(taken.begin(), taken.end(), 0.0) / static_cast<double>(taken.size());
  outcome.p99 = quantile(taken, 0.99);
  return outcome;
}

void expect_target_is_kept(const Outcome& outcome, double target) {
  EXPECT_LE(outcome.lost, 1.1 * target);
}

class TargetBoundTest : public testing::TestWithParam<double> {
 protected:
  const double target_ = GetParam();

  /// The target is kept, and calls take hardly longer than with the shortest bound that keeps it.
  void expect_like_oracle(const Times& times, double tolerance, int ranks = 1) {
    const Outcome outcome = run(times, target_, ranks);
    expect_target_is_kept(outcome, target_);
    const Outcome wanted = best(times, target_);
    EXPECT_LE(outcome.mean, 1.04 * wanted.mean);
    EXPECT_LE(outcome.p99, (1 + tolerance) * wanted.p99);
    EXPECT_GE(outcome.bound, (1 - tolerance) * oracle(times, kCalls - 1, target_));
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, TargetBoundTest, testing::Values(0.001, 0.005, 0.01, 0.02),
                         [](const auto& param) {
                           return std::to_string(std::lround(param.param * 1000)) + "_per_mille";
                         });

TEST_P(TargetBoundTest, quiet__hardly_anything_is_lost) {
  const Outcome outcome = run([](Random& r, int) { return lognormal(r, 0.02); }, target_);
  EXPECT_LE(outcome.lost, 0.0001);
  EXPECT_LE(outcome.bound, 1.15);
}

TEST_P(TargetBoundTest, lognormal__like_the_oracle) {
  expect_like_oracle([](Random& r, int) { return lognormal(r, 0.1); }, 0.06);
}

TEST_P(TargetBoundTest, wide_lognormal__like_the_oracle) {
  expect_like_oracle([](Random& r, int) { return lognormal(r, 0.3); }, 0.15);
}

TEST_P(TargetBoundTest, two_modes__like_the_oracle) {
  expect_like_oracle(
      [](Random& r, int) { return (happens(r, 0.3) ? 1.6 : 1.0) * lognormal(r, 0.03); }, 0.06);
}

TEST_P(TargetBoundTest, rare_tenfold_calls__the_target_is_kept) {
  const Outcome outcome = run(
      [](Random& r, int) { return (happens(r, 0.01) ? 10.0 : 1.0) * lognormal(r, 0.03); }, target_);
  expect_target_is_kept(outcome, target_);
}

TEST_P(TargetBoundTest, step_up__like_the_oracle) {
  expect_like_oracle(
      [](Random& r, int call) { return (call < kStep ? 1.0 : 1.3) * lognormal(r, 0.1); }, 0.06);
}

TEST_P(TargetBoundTest, step_down__like_the_oracle) {
  expect_like_oracle(
      [](Random& r, int call) { return (call < kStep ? 2.0 : 1.0) * lognormal(r, 0.1); }, 0.06);
}

TEST_P(TargetBoundTest, drift__the_target_is_kept) {
  const Outcome outcome =
      run([](Random& r, int call) { return (1 + call / 1000.0) * lognormal(r, 0.1); }, target_);
  expect_target_is_kept(outcome, target_);
}

TEST_P(TargetBoundTest, ranks_with_times_of_their_own__the_largest_loss_is_below_the_target) {
  const Outcome outcome = run([](Random& r, int) { return lognormal(r, 0.1); }, target_, 4);
  expect_target_is_kept(outcome, target_);
}

/// The distributions of this file, by name.
std::vector<std::pair<std::string, Times>> all_times() {
  return {
      {"quiet", [](Random& r, int) { return lognormal(r, 0.02); }},
      {"lognormal", [](Random& r, int) { return lognormal(r, 0.1); }},
      {"wide", [](Random& r, int) { return lognormal(r, 0.3); }},
      {"two modes",
       [](Random& r, int) { return (happens(r, 0.3) ? 1.6 : 1) * lognormal(r, 0.03); }},
      {"tenfold", [](Random& r, int) { return (happens(r, 0.01) ? 10 : 1) * lognormal(r, 0.03); }},
      {"rarely tenfold",
       [](Random& r, int) { return (happens(r, 0.002) ? 10 : 1) * lognormal(r, 0.03); }},
      {"step", [](Random& r, int call) { return (call < kStep ? 1 : 1.3) * lognormal(r, 0.1); }},
      {"drift", [](Random& r, int call) { return (1 + call / 1000.0) * lognormal(r, 0.1); }},
      {"load",
       [](Random& r, int call) { return (call / 100 % 5 == 4 ? 2 : 1) * lognormal(r, 0.1); }},
  };
}

// A larger target never costs time, and what buys no time is not lost.
TEST(TargetBoundTest, larger_target__calls_take_no_longer) {
  for (const auto& [name, times] : all_times()) {
    double mean = 1e9, p99 = 1e9;
    for (const double target : {0.001, 0.002, 0.005, 0.01, 0.02, 0.05}) {
      const Outcome outcome = run(times, target);
      EXPECT_LE(outcome.mean, 1.01 * mean) << name << ", target " << target;
      EXPECT_LE(outcome.p99, 1.01 * p99) << name << ", target " << target;
      mean = std::min(mean, outcome.mean);
      p99 = std::min(p99, outcome.p99);
    }
  }
}

/// After how many calls the bound is within 10 % of the oracle's, when all calls take `factor` x as
/// long from one call on; the largest of 20 runs.
int calls_to_follow(double factor, double target) {
  const auto times = [factor](Random& r, int call) {
    return (call < kStep ? 1.0 : factor) * lognormal(r, 0.1);
  };
  const double wanted = oracle(times, kStep, target);
  int longest = 0;
  for (int seed = 0; seed < kRuns; ++seed) {
    Random random(static_cast<std::uint64_t>(seed) + 1);
    TargetBound one(target);
    int call = 0;
    for (;; ++call) {
      const double bound = one.bound().value_or(1e9);
      if (call >= kStep && std::abs(bound / wanted - 1) < 0.1) break;
      if (call > 2 * kStep) break;
      const double time = times(random, call);
      one.learn(std::min(time, bound), lost_share(time, bound));
      one.account(lost_share(time, bound));
    }
    longest = std::max(longest, call - kStep);
  }
  return longest;
}

TEST_P(TargetBoundTest, step_up__is_followed_within_20_calls) {
  EXPECT_LE(calls_to_follow(2, target_), 20);
}

TEST_P(TargetBoundTest, step_down__is_followed_within_110_calls) {
  EXPECT_LE(calls_to_follow(0.5, target_), 110);
}

TEST(TargetBoundTest, few_calls__no_bound) {
  TargetBound one(0.001);
  for (int call = 0; call < 8; ++call) {
    one.learn(1, 0);
    one.account(0.5);  // nothing to account yet
    EXPECT_FALSE(one.bound());
  }
  one.learn(1, 0);
  ASSERT_TRUE(one.bound());
  EXPECT_DOUBLE_EQ(*one.bound(), 1.1);
  EXPECT_TRUE(one.at_floor());
}

TEST(TargetBoundTest, set_target__the_tail_is_cut_by_the_new_one) {
  TargetBound one(0.001);
  TargetBound other(0.05);
  for (int call = 0; call < 400; ++call) {
    const double time = call % 10 == 0 ? 3 : 1;
    one.learn(time, 0);
    other.learn(time, 0);
  }
  const double cautious = *one.bound();
  one.set_target(0.05);
  EXPECT_LT(*one.bound(), cautious);
  EXPECT_DOUBLE_EQ(*one.bound(), *other.bound());
  one.set_target(0.001);
  EXPECT_DOUBLE_EQ(*one.bound(), cautious);
}

TEST(TargetBoundTest, five_longer_calls__start_anew) {
  TargetBound one(0.02);
  for (int call = 0; call < 50; ++call) one.learn(1, 0);
  for (int call = 0; call < 4; ++call) one.learn(4, 0);
  EXPECT_LT(*one.bound(), 4);
  one.learn(4, 0);
  EXPECT_DOUBLE_EQ(*one.bound(), 1.1 * 4);
}

TEST(TargetBoundTest, all_lost__counts_as_twice_the_time) {
  TargetBound one(0.001);
  for (int call = 0; call < 9; ++call) one.learn(1, 1);
  EXPECT_DOUBLE_EQ(*one.bound(), 1.1 * 2);
}

}  // namespace
}  // namespace tarpon::target_bound_test
