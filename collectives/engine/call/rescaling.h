// How an owner weighs the contributions to a slot that lacks others: the formulas of Rescale
// (mechanisms.h).
#pragma once

#include <cstdint>

#include "collectives/mechanisms.h"
#include "collectives/types.h"

namespace tarpon {

/// A factor: `up` / `down`.
struct Ratio {
  std::uint32_t up = 1;
  std::uint32_t down = 1;
};

/// The factor on the sum of `count` contributions, of `world` that were due. `function`: sum or
/// avg; an average is divided by it too.
Ratio rescaling(Rescale rule, ReduceOp function, std::uint32_t world, std::uint32_t count);

}  // namespace tarpon
