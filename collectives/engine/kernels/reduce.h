// Element-wise reduction of received data into an accumulator: the arithmetic of every collective.
//
// Take the kernels once per operation, call them once per slot. Every instruction set gives the
// same bits, so ranks on different processors agree. The exception are sums and products of two
// NaN: the processor chooses which one remains. All functions are pure, thread-safe, and take 0
// elements.
//
// Pointers need no alignment. `out` may equal `a`, and in a step with partial results `b` where
// that holds elements; otherwise `out` overlaps neither operand. Sums and products of integers
// wrap. min and max do not depend on the order of the operands: -0 is below +0, and where an
// operand is NaN the result is the quiet NaN without sign and payload.
//
// float16 and bfloat16: sums and products over several contributions are float32 until the last
// contribution, and are rounded then, to the nearest value, ties to even. A slot between its first
// and its last contribution is an array of float32 partial results (needs_partials()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "collectives/types.h"

namespace tarpon {

/// The kernels that add one contribution to what is there. `a` and `out` are elements of the type,
/// or partial results, by the step.
struct ReduceStep {
  /// out[i] = a[i] op b[i]; avg adds.
  void (*combine)(void* out, const void* a, const void* b, std::size_t elements);

  /// out[i] = (a[i] + b[i]) / divisor, the last addition of avg: one rounding of the sum, one of
  /// the division (half precision: one of both), exactly sum / N in the type; integers truncate
  /// toward zero. Null unless the function is sum or avg and `out` holds elements.
  /// REQUIRES: 1 <= divisor <= 65536.
  void (*combine_scaled)(void* out, const void* a, const void* b, std::size_t elements,
                         std::uint32_t divisor);
};

struct ReduceKernels {
  // Where partial results are elements, all four are equal.
  ReduceStep only;   // both of two contributions: elements into elements
  ReduceStep first;  // the first two of several: elements into partial results
  ReduceStep next;   // partial results into partial results
  ReduceStep last;   // partial results into elements

  /// out[i] = in[i] * numerator / denominator: a slot with c of N contributions takes N / c for sum
  /// and 1 / c for avg. `out` may equal `in`. Numerator 1 divides, so that c = N gives the bits of
  /// combine_scaled; otherwise the factor is rounded to the type first (half precision: to
  /// float32), no wider arithmetic. Integers multiply (wrapping), then divide. REQUIRES: both
  /// in 1..65536.
  void (*scale)(void* out, const void* in, std::size_t elements, std::uint32_t numerator,
                std::uint32_t denominator);

  /// The same from partial results: `out` does not overlap `in`, unless these are elements.
  void (*scale_partial)(void* out, const void* in, std::size_t elements, std::uint32_t numerator,
                        std::uint32_t denominator);

  /// Whether no element is NaN or infinite. Reads all of them, at the speed of the memory. Null for
  /// integers.
  bool (*finite)(const void* data, std::size_t elements);
};

/// Whether partial results are float32 rather than elements.
constexpr bool needs_partials(DataType type, ReduceOp function) {
  return is_half(type) &&
         (function == ReduceOp::sum || function == ReduceOp::avg || function == ReduceOp::prod);
}

/// The fastest kernels that this processor runs. They are never freed. `combine` is null if the
/// function is not defined for the type; for custom all are null.
const ReduceKernels& reduce_kernels(DataType type, ReduceOp function);

/// One compiled copy of the kernels.
struct ReduceVariant {
  std::string_view instruction_set;  // "baseline", "avx2", "avx512"
  const ReduceKernels& (*kernels)(DataType type, ReduceOp function);
};

/// The copies that this processor can run, baseline first; reduce_kernels() takes the last one.
std::span<const ReduceVariant> reduce_variants();

}  // namespace tarpon
