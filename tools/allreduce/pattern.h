// Test data whose reduction is known exactly, for the benchmark's check.
#pragma once

#include <cstdint>
#include <span>

#include "collectives/allreduce.h"

namespace tarpon {

/// Small integers with a period of 1024 elements that differ from rank to rank: their sums are
/// exact in every type, or rounded once (half precision), or taken modulo 2^bits, so wrong means
/// wrong.
void fill_pattern(std::span<std::byte> buffer, DataType type, ReduceOp function, Rank rank);

/// Elements of `result` that are not the reduction over exactly the contributors that `report`
/// names: honest loss is not wrong. `missing` is how holes are to be filled on `rank`. Coded ones
/// may differ by rounding; under Rescale::inverse they are looked at for being numbers only.
std::uint64_t count_wrong(std::span<const std::byte> result, DataType type, ReduceOp function,
                          Rank rank, std::uint32_t world, MissingFill missing,
                          const Report& report);

/// Of `result` against the reduction over all ranks: the sum of squared differences over the sum of
/// squares. What the losses cost, rounding included. Floats only.
double pattern_error(std::span<const std::byte> result, DataType type, ReduceOp function,
                     std::uint32_t world);

}  // namespace tarpon
