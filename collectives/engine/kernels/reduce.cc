// Picks the reduction kernels that this processor can run.
#include "collectives/engine/kernels/reduce.h"

#include <array>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "collectives/engine/kernels/reduce_sets.h"

namespace tarpon {
namespace {

// In rising order of width. A processor that can run one can run all before it.
constexpr std::array kVariants {
  ReduceVariant{"baseline", kernels::baseline},
#if defined(__x86_64__)
      ReduceVariant{"avx2", kernels::avx2}, ReduceVariant{"avx512", kernels::avx512},
#endif
};

#if defined(__x86_64__)
/// Whether the processor has F16C; not every compiler's __builtin_cpu_supports() knows it.
bool converts_float16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

std::size_t runnable_variants() {
  std::size_t runnable = 1;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && converts_float16()) {
    runnable = 2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) runnable = 3;
  }
#endif
  return runnable;
}

}  // namespace

std::span<const ReduceVariant> reduce_variants() {
  // Computed once: CPUID exits from a virtual machine, which takes some 10 us.
  static const std::size_t runnable = runnable_variants();
  return std::span(kVariants).first(runnable);
}

const ReduceKernels& reduce_kernels(DataType type, ReduceOp function) {
  return reduce_variants().back().kernels(type, function);
}

}  // namespace tarpon
