// Element-wise reduction of what arrives into an accumulator: the arithmetic of every collective.
//
// Take the kernels once per operation, call them once per slot. Every instruction set gives the
// same bits, so ranks on different processors agree; only which NaN remains when both operands are
// NaN is left to the processor. All functions are pure, thread-safe, and take 0 elements.
//
// Pointers need no alignment. `out` may equal `a`; otherwise `out` overlaps neither operand.
// Sums and products of integers wrap. min keeps `a` unless b < a, max unless b > a: a NaN in `a`
// stays, a NaN in `b` is passed over, and of -0 and +0 the one in `a` stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "collectives/types.h"

namespace tarpon {

struct ReduceKernels {
  /// out[i] = a[i] op b[i]; avg adds.
  void (*combine)(void* out, const void* a, const void* b, std::size_t elements);

  /// out[i] = (a[i] + b[i]) / divisor, the last addition of avg: one rounding of the sum, one of
  /// the division, exactly sum / N in the type; integers truncate toward zero. Null for min, max,
  /// prod. REQUIRES: 1 <= divisor <= 65536.
  void (*combine_scaled)(void* out, const void* a, const void* b, std::size_t elements,
                         std::uint32_t divisor);

  /// inout[i] *= numerator / denominator: a slot with c of N contributions takes N / c for sum and
  /// 1 / c for avg. Numerator 1 divides, so that c = N gives the bits of combine_scaled; otherwise
  /// the factor is rounded to the type first, no wider arithmetic. Integers multiply (wrapping),
  /// then divide. REQUIRES: both in 1..65536.
  void (*scale)(void* inout, std::size_t elements, std::uint32_t numerator,
                std::uint32_t denominator);

  /// out[i] = a[i] + weight * b[i], the weight rounded to the type: two roundings, no fused
  /// arithmetic. Null for integers and for min, max, prod.
  void (*combine_weighted)(void* out, const void* a, const void* b, std::size_t elements,
                           double weight);

  /// Whether no element is NaN or infinite. Reads all of them, at the speed of the memory. Null for
  /// integers.
  bool (*finite)(const void* data, std::size_t elements);
};

/// The fastest kernels this processor runs. Lives for ever.
const ReduceKernels& reduce_kernels(DataType type, ReduceOp function);

/// One compiled copy of the kernels.
struct ReduceVariant {
  std::string_view instruction_set;  // "baseline", "avx2", "avx512"
  const ReduceKernels& (*kernels)(DataType type, ReduceOp function);
};

/// The copies that this processor can run, baseline first; reduce_kernels() takes the last one.
std::span<const ReduceVariant> reduce_variants();

}  // namespace tarpon
