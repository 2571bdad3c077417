// The faults of a seed: drawn into its plan, and described. Private to the simulation's files.
#pragma once

#include <string>

#include "tools/simulation/simulation.h"

namespace tarpon {

/// Sets those of the `allowed` faults that plan.seed turns on. Each fault draws from a generator of
/// its own: leaving one out does not change the others.
void draw_faults(SimulationPlan& plan, const FaultSet& allowed);

/// The faults that are on, with their values.
std::string describe_faults(const SimulationPlan& plan);

}  // namespace tarpon
