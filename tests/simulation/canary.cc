// Linked with a planted defect: ends with 0 at the first seed whose oracles see it, with 1 when
// none does.
#include <fmt/format.h>

#include <iterator>

#include "tools/simulation/simulation.h"

int main() {
  constexpr std::uint64_t kSeeds = 300;
  constexpr std::uint64_t kFirst[] = {0, tarpon::kFirstSeedOfAlgorithms,
                                      tarpon::kFirstSeedOfSecrets, tarpon::kFirstSeedOfStrangers};
  for (std::uint64_t i = 0; i < std::size(kFirst) * kSeeds; ++i) {
    const std::uint64_t seed = 1 + i / std::size(kFirst) + kFirst[i % std::size(kFirst)];
    const tarpon::SimulationPlan plan = tarpon::plan_simulation(seed);
    const tarpon::SimulationResult result = tarpon::run_simulation(plan);
    if (result.violations.empty()) continue;
    fmt::print("{}\n  broken: {}\n", tarpon::describe(plan), result.violations.front());
    return 0;
  }
  fmt::print(
      "no seed from 1 to {}, and none of as many that draw algorithms, secrets or strangers, "
      "finds the planted defect: an oracle is blind\n",
      kSeeds);
  return 1;
}
