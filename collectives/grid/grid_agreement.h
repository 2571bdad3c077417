// The verdict of a grid on a step: that of each rail, then the worst of these in the host.
//
// A rail's verdict is the same on all hosts, so the worst is too.
#pragma once

#include <cstdint>

#include "collectives/grid/live_parts.h"
#include "collectives/step_verdict.h"
#include "transport/time.h"

namespace tarpon::grid {

/// As Communicator::agree(). Masks have a bit for each host. `differing` has all hosts where rails
/// differ from each other, and no rail within itself. One thread at a time.
StepVerdict agree(const LiveParts& parts, std::uint64_t step, const LossReport& report,
                  Duration deadline);

}  // namespace tarpon::grid
