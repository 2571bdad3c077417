// Checks whether the result of a file job is right within rounding.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/allreduce.h"
#include "tools/collective/npy.h"

namespace tarpon {

/// Counts the elements of `result` that differ by more than rounding allows from the reduction, in
/// double precision, over the contributors that `report` names. min and max allow no difference.
/// NaN and infinity must be where the inputs or an overflow put them. Holes are skipped. For coded
/// results tools/reference/coded_reference.h defines the tolerance.
/// REQUIRES: all arrays, by rank, of one type and length.
std::uint64_t count_wrong(const std::vector<NpyArray>& inputs, const NpyArray& result,
                          ReduceOp function, const Report& report);

/// Error of `result` against the reduction over all inputs: the sum of squared differences over the
/// sum of squares. It measures the cost of losses, rounding included.
double file_error(const std::vector<NpyArray>& inputs, const NpyArray& result, ReduceOp function);

}  // namespace tarpon
