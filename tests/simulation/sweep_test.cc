// Seeds on several threads: none is left out or run twice, and nothing hangs on how many threads
// there are. The thread sanitizer runs this too.
#include "tools/simulation/seeds/sweep.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

namespace tarpon::sweep_test {
namespace {

TEST(SimulationSweepTest, jobs__change_no_result) {
  std::string tables[2];
  for (const unsigned jobs : {1u, 4u}) {
    std::mutex mutex;  // `plan` comes from several threads
    std::multiset<std::uint64_t> planned;
    std::uint64_t done = 0;
    const Coverage coverage = run_seeds(
        {.first = 101, .seeds = 40, .jobs = jobs},
        [&](std::uint64_t seed) {
          const std::lock_guard lock(mutex);
          planned.insert(seed);
          return plan_simulation(seed);
        },
        [](const SimulationPlan& plan, const SimulationResult& result) {
          ADD_FAILURE() << describe(plan) << "\n" << result.violations.front();
        },
        [&](std::uint64_t now) {
          EXPECT_GE(now, done);
          done = now;
        });
    ASSERT_EQ(planned.size(), 40u);
    EXPECT_EQ(std::set(planned.begin(), planned.end()).size(), 40u);
    EXPECT_EQ(*planned.begin(), 101u);
    EXPECT_EQ(*planned.rbegin(), 140u);
    EXPECT_LE(done, 40u);
    tables[jobs == 1 ? 0 : 1] = coverage.table(0);
  }
  EXPECT_EQ(tables[0], tables[1]);
}

}  // namespace
}  // namespace tarpon::sweep_test
