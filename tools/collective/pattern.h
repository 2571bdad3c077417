// Test data whose reduction is known exactly, for the benchmark's check.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/allreduce.h"
#include "tools/collective/measured_collective.h"

namespace tarpon {

/// Small integers that differ from rank to rank, with a period of 1021 elements: as that is prime,
/// the parts of a buffer differ too. Their sums are exact in every type, or rounded once (half
/// precision), or taken modulo 2^bits, so that any difference is an error.
void fill_pattern(std::span<std::byte> buffer, DataType type, ReduceOp function, Rank rank);

/// Counts the elements of `result` that are not the reduction over exactly the contributors that
/// `report` names; losses that it reports are not wrong. `missing` tells how `rank` fills holes.
/// Coded elements may differ by rounding.
std::uint64_t count_wrong(std::span<const std::byte> result, DataType type, ReduceOp function,
                          Rank rank, std::uint32_t world, MissingFill missing,
                          const Report& report);

/// Counts the elements of `result` that are not what the pieces say, of a call of `ranks` ranks.
/// `rounds`: hosts may have rounded their sums. `rescale`: how pieces that lack contributors are
/// scaled.
std::uint64_t count_wrong(std::span<const std::byte> result, DataType type, ReduceOp function,
                          std::uint32_t ranks, const std::vector<ExpectedPiece>& pieces,
                          bool rounds = false, Rescale rescale = Rescale::count);

/// Error of `result` against the reduction over all ranks: the sum of squared differences over the
/// sum of squares. It measures the cost of losses, rounding included. Floats only.
double pattern_error(std::span<const std::byte> result, DataType type, ReduceOp function,
                     std::uint32_t world);

}  // namespace tarpon
