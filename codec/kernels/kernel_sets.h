// The entry points of transform.cc, which CMake compiles once per instruction set.
#pragma once

#include "codec/hadamard.h"

namespace tarpon::codec::kernels {

/// Floats of scratch: two blocks, or one with the zeros behind it.
constexpr std::uint32_t scratch_floats(std::uint32_t block) {
  return 2 * block;
}

// The functions of hadamard.h. REQUIRES: `scratch` begins at a cache line.
#define TARPON_CODEC_KERNELS(set)                                                                 \
  bool encode_##set(const CodedLayout& layout, SignKey key, MemberRange members, const float* in, \
                    float* coded, float* scratch);                                                \
  void decode_##set(const CodedLayout& layout, SignKey key, MemberRange members,                  \
                    const float* coded, const float* gains, float* out, float* scratch);
TARPON_CODEC_KERNELS(sse2)
TARPON_CODEC_KERNELS(avx2)
TARPON_CODEC_KERNELS(avx512)
TARPON_CODEC_KERNELS(neon)
#undef TARPON_CODEC_KERNELS

}  // namespace tarpon::codec::kernels
