// Whether the result of a file job is right, as far as rounding allows to tell.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/allreduce.h"
#include "tools/npy.h"

namespace tarpon {

/// Elements of `result` farther from the reduction in double precision over the contributors that
/// `report` names than rounding allows: not at all for min and max. NaN and infinity must be where
/// the inputs or an overflow put them. Holes are not looked at. REQUIRES: all arrays, by rank, of
/// one type and length.
std::uint64_t count_wrong(const std::vector<NpyArray>& inputs, const NpyArray& result,
                          ReduceOp function, const Report& report);

}  // namespace tarpon
