// How an owner weighs the contributions to a slot that lacks others: the formulas of Rescale
// (mechanisms.h). A communicator chooses one of them when it is made.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/engine/call/sender_loss.h"
#include "collectives/mechanisms.h"
#include "collectives/types.h"

namespace tarpon {

/// A factor: `up` / `down`.
struct Ratio {
  std::uint32_t up = 1;
  std::uint32_t down = 1;
};

struct Rescaling {
  /// The factor on the sum of `count` contributions, of `world` that were due. `function`: sum or
  /// avg; an average is divided by it too.
  Ratio (*factor)(ReduceOp function, std::uint32_t world, std::uint32_t count);
  /// The weight of each rank's contributions, also in slots that lack none; empty: 1 for each.
  std::vector<double> (*weights)(const SenderLoss& losses);
};

/// The result lives as long as the program.
const Rescaling& rescaling_by(Rescale rule);

}  // namespace tarpon
