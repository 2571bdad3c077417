// The learnt bound beside late ranks, in a model of the calls of 2 to 64 ranks: bounded calls
// against exact ones, and over loss targets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/engine/learning/target_bound.h"
#include "collectives/step_verdict.h"
#include "transport/random.h"

namespace tarpon::late_rank_bound_test {
namespace {

constexpr int kRuns = 2;
constexpr int kCalls = 1500;
constexpr int kSettling = 200;  // calls that are not counted

/// Uniform from 0.95 to 1.05: what a call takes where no rank is late.
double usual(Random& random) {
  return 0.95 + static_cast<double>(random.below(1u << 20)) / (10.0 * (1u << 20));
}

/// How late the latest rank is in call `number`, in usual times.
using Lateness = std::function<double(Random&, int number)>;

struct Outcome {
  double lost = 0;  // mean share
  double mean = 0;  // time of a call
  double exact = 0;
  double p99 = 0;
};

/// Calls of `world` ranks, of which one is late. A call whose bound ends before that rank has come
/// lacks its contributions and its shard. It waits for the rank where a stage lacks more than half
/// of what a step may lack, as TarCall::hold_policy() says.
Outcome run(const Lateness& lateness, int world, double target) {
  const double above = LossBudget::usual(target).skip_above / 2;
  const double of_stage = 1.0 / (world - 1);
  const double of_call = 1 - (1 - 1.0 / world) * (1 - 1.0 / world);
  Outcome outcome;
  std::vector<double> taken;
  for (int seed = 0; seed < kRuns; ++seed) {
    Random random(static_cast<std::uint64_t>(seed) * 31 + 7);
    TargetBound bound(target);
    for (int call = 0; call < kCalls; ++call) {
      const double others = usual(random);
      const double whole = others + lateness(random, call);
      const double until = call < 50 ? 1e9 : bound.bound().value_or(1e9);
      double lost = std::max(0.0, 1 - until / others), time = std::min(whole, until);
      if (time < whole && of_stage > above) {
        lost = 0;
        time = whole;
      } else if (time < whole && whole > others) {
        lost = std::max(lost, of_call);
      }
      bound.learn(time, lost);
      bound.account(lost);
      if (call < kSettling) continue;
      constexpr double kCounted = kRuns * (kCalls - kSettling);
      outcome.lost += lost / kCounted;
      outcome.mean += time / kCounted;
      outcome.exact += whole / kCounted;
      taken.push_back(time);
    }
  }
  const auto at = static_cast<std::ptrdiff_t>(0.99 * static_cast<double>(taken.size()));
  std::nth_element(taken.begin(), taken.begin() + at, taken.end());
  outcome.p99 = taken[static_cast<std::size_t>(at)];
  return outcome;
}

std::vector<std::pair<std::string, Lateness>> cases() {
  std::vector<std::pair<std::string, Lateness>> all;
  for (const double late : {0.1, 0.3, 1.0, 2.0, 5.0}) {
    all.emplace_back("steadily late by " + std::to_string(late),
                     [late](Random&, int) { return late; });
  }
  all.emplace_back("late by 0 to 2",
                   [](Random& random, int) { return 2 * (usual(random) - 0.95) * 10; });
  all.emplace_back("one pause", [](Random&, int call) { return call == 700 ? 100.0 : 0.0; });
  all.emplace_back("two ranks in turn",
                   [](Random&, int call) { return call % 2 == 0 ? 1.0 : 2.0; });
  all.emplace_back("now and then",
                   [](Random& random, int) { return random.below(50) == 0 ? 3.0 : 0.0; });
  all.emplace_back(
      "load", [](Random& random, int call) { return call / 150 % 4 == 3 ? usual(random) : 0.0; });
  return all;
}

TEST(LateRankBoundTest, any_lateness__no_longer_than_exact_and_within_the_target) {
  for (const auto& [name, lateness] : cases()) {
    for (const int world : {2, 3, 4, 8, 16, 32, 64}) {
      for (const double target : {0.001, 0.01, 0.05}) {
        SCOPED_TRACE(name + ", " + std::to_string(world) + " ranks, target " +
                     std::to_string(target));
        const Outcome outcome = run(lateness, world, target);
        EXPECT_LE(outcome.mean, 1.03 * outcome.exact);
        EXPECT_LE(outcome.lost, 1.1 * target);
      }
    }
  }
}

TEST(LateRankBoundTest, larger_target__calls_take_no_longer) {
  for (const auto& [name, lateness] : cases()) {
    for (const int world : {2, 4, 16, 64}) {
      Outcome before = run(lateness, world, 0.001);
      for (const double target : {0.005, 0.01, 0.02, 0.05}) {
        SCOPED_TRACE(name + ", " + std::to_string(world) + " ranks, target " +
                     std::to_string(target));
        const Outcome outcome = run(lateness, world, target);
        EXPECT_LE(outcome.mean, 1.01 * before.mean);
        EXPECT_LE(outcome.p99, 1.01 * before.p99);
        before = outcome;
      }
    }
  }
}

}  // namespace
}  // namespace tarpon::late_rank_bound_test
