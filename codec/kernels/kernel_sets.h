// The entry points of transform.cc, which CMake compiles once per instruction set.
#pragma once

#include "codec/hadamard.h"

namespace tarpon::codec::kernels {

// Blocks of one group that are worked on together, so that a row gets and gives whole cache lines.
inline constexpr std::uint32_t kTogether = 8;

/// Floats of scratch for one block with the zeros behind it: whole cache lines, and not a power of
/// two, or the rows of several blocks would share the sets of the first cache.
constexpr std::uint32_t scratch_pitch(std::uint32_t elements) {
  return (elements + 15) / 16 * 16 + 16;
}

// As in hadamard.h; `scratch`: kTogether blocks' worth, at a cache line.
#define TARPON_CODEC_KERNELS(set)                                                          \
  bool encode_##set(const CodedLayout& layout, SignKey key, const float* in, float* coded, \
                    float* scratch);                                                       \
  void decode_##set(const CodedLayout& layout, SignKey key, const float* coded,            \
                    const float* gains, float* out, float* scratch);
TARPON_CODEC_KERNELS(sse2)
TARPON_CODEC_KERNELS(avx2)
TARPON_CODEC_KERNELS(avx512)
TARPON_CODEC_KERNELS(neon)
#undef TARPON_CODEC_KERNELS

}  // namespace tarpon::codec::kernels
