// Many seeds of the simulation, several at once.
#pragma once

#include <cstdint>
#include <functional>

#include "tools/simulation/seeds/coverage.h"
#include "tools/simulation/simulation.h"

namespace tarpon {

struct Sweep {
  std::uint64_t first = 1;
  std::uint64_t seeds = 1;
  unsigned jobs = 0;  // at once; 0: one per processor. Changes no result
};

/// Runs `seeds` seeds from `first` on, each with the plan that `plan` makes of it, and returns what
/// they have reached. `plan` is called from several threads at once; `failed` too, but one call at
/// a time, in the order in which seeds end; `progress` a few times a second in the calling thread,
/// with the number of seeds done.
///
/// A seed that ends the process by SIGABRT or SIGSEGV is named on standard error first.
Coverage run_seeds(
    const Sweep& sweep, const std::function<SimulationPlan(std::uint64_t)>& plan,
    const std::function<void(const SimulationPlan&, const SimulationResult&)>& failed,
    const std::function<void(std::uint64_t)>& progress);

}  // namespace tarpon
