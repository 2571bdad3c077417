// Whether the result of a file job is right, as far as rounding allows to tell.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/allreduce.h"
#include "tools/allreduce/npy.h"

namespace tarpon {

/// Elements of `result` farther from the reduction in double precision over the contributors that
/// `report` names than rounding allows: not at all for min and max. NaN and infinity must be where
/// the inputs or an overflow put them. Holes are not looked at. Of coded results rounding allows
/// what tools/reference/coded_reference.h says; under Rescale::inverse they have to be numbers.
/// REQUIRES: all arrays, by rank, of one type and length.
std::uint64_t count_wrong(const std::vector<NpyArray>& inputs, const NpyArray& result,
                          ReduceOp function, const Report& report);

/// Of `result` against the reduction over all inputs: the sum of squared differences over the sum
/// of squares. What the losses cost, rounding included.
double file_error(const std::vector<NpyArray>& inputs, const NpyArray& result, ReduceOp function);

}  // namespace tarpon
