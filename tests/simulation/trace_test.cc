// The same seeds leave the same traces, whatever built the code. Built as the other tests are, and
// again at other levels of optimisation.
#include <gtest/gtest.h>

#include "tools/simulation.h"

namespace tarpon {
namespace {

constexpr std::uint64_t kTraceOfFortySeeds = 0x17890a4e4d51fb43;

TEST(TraceTest, forty_seeds__leave_the_same_traces_with_every_compiler) {
  std::uint64_t hash = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    hash = (hash ^ run_simulation(plan_simulation(seed)).trace_hash) * 1099511628211ull;
  }
  EXPECT_EQ(hash, kTraceOfFortySeeds)
      << "0x" << std::hex << hash << ": right when the protocol or the plans changed";
}

}  // namespace
}  // namespace tarpon
