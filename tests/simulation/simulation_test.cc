// Many seeds of the simulator; and jobs with a planted defect, which its oracles must catch.
#include "tools/simulation.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace tarpon {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TARPON_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TARPON_SANITIZED 1
#endif
#endif
#ifdef TARPON_SANITIZED
constexpr std::uint64_t kSeeds = 200;
#else
constexpr std::uint64_t kSeeds = 1000;
#endif
constexpr std::uint64_t kCases = 10;
constexpr std::uint64_t kFirstSeed = 1;

void expect_good(const SimulationPlan& plan) {
  const SimulationResult result = run_simulation(plan);
  if (result.violations.empty()) return;
  std::string text = describe(plan) + "\n";
  for (const std::string& violation : result.violations) text += "  broken: " + violation + "\n";
  ADD_FAILURE() << text << "  repeat: tarpon sim --seed " << plan.seed;
}

class SimulationSeedsTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(SimulationSeedsTest, run__keeps_every_promise) {
  const std::uint64_t first = kFirstSeed + GetParam() * (kSeeds / kCases);
  std::printf("seeds %llu to %llu; repeat: tarpon sim --seed %llu --count %llu\n",
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + kSeeds / kCases - 1),
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(kSeeds / kCases));
  for (std::uint64_t seed = first; seed < first + kSeeds / kCases; ++seed) {
    expect_good(plan_simulation(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimulationSeedsTest, testing::Range(std::uint64_t{0}, kCases));

TEST(SimulationTest, run__the_same_seed_leaves_the_same_trace) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const SimulationPlan plan = plan_simulation(seed);
    const SimulationResult a = run_simulation(plan);
    const SimulationResult b = run_simulation(plan);
    EXPECT_EQ(a.trace_hash, b.trace_hash) << "seed " << seed;
    EXPECT_EQ(a.virtual_time, b.virtual_time);
    EXPECT_EQ(a.packets, b.packets);
    EXPECT_NE(a.trace_hash, run_simulation(plan_simulation(seed + 1)).trace_hash);
  }
}

TEST(SimulationTest, plan__the_seeds_reach_every_fault_and_shape) {
  int exact = 0, bounded = 0, loss = 0, duplicate = 0, reorder = 0, corrupt = 0, truncate = 0,
      calm = 0, two = 0, eight = 0, copying = 0;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    const SimulationPlan plan = plan_simulation(seed);
    ++(plan.bounded ? bounded : exact);
    loss += plan.faults.loss > 0;
    duplicate += plan.faults.duplicate > 0;
    reorder += plan.faults.reorder > 0;
    corrupt += plan.faults.corrupt > 0;
    truncate += plan.faults.truncate > 0;
    calm += !plan.faults.any();
    two += plan.ranks == 2;
    eight += plan.ranks == 8;
    copying += !plan.gathers;
  }
  for (const int reached :
       {exact, bounded, loss, duplicate, reorder, corrupt, truncate, calm, two, eight, copying}) {
    EXPECT_GT(reached, static_cast<int>(kSeeds / 100));
  }
}

}  // namespace
}  // namespace tarpon
