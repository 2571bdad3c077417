// Picks the reduction kernels that this processor can run.
#include "collectives/reduce.h"

#include <array>

#include "collectives/kernels/kernel_sets.h"

namespace tarpon {
namespace {

// In rising order of width, each one on processors that have all before it.
constexpr std::array kVariants {
  ReduceVariant{"baseline", kernels::baseline},
#if defined(__x86_64__)
      ReduceVariant{"avx2", kernels::avx2}, ReduceVariant{"avx512", kernels::avx512},
#endif
};

std::size_t runnable_variants() {
  std::size_t runnable = 1;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    runnable = 2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) runnable = 3;
  }
#endif
  return runnable;
}

}  // namespace

std::span<const ReduceVariant> reduce_variants() {
  return std::span(kVariants).first(runnable_variants());
}

const ReduceKernels& reduce_kernels(DataType type, ReduceOp function) {
  return reduce_variants().back().kernels(type, function);
}

}  // namespace tarpon
