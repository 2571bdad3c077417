// Registers of floats, and the operations on them that xsimd 8 lacks.
//
// Internal linkage: this is compiled for several instruction sets (see transform.cc).
#pragma once

#include <xsimd/xsimd.hpp>  // and the intrinsics of x86

#include <cstddef>
#include <cstdint>

namespace tarpon::codec::kernels {
namespace {

using Arch = TARPON_CODEC_ARCH;
using Floats = xsimd::batch<float, Arch>;
using Words = xsimd::batch<std::uint32_t, Arch>;
constexpr std::uint32_t kLanes = Floats::size;

/// Returns a x b + c, rounded once: for AVX-512 xsimd multiplies, then adds.
[[gnu::always_inline]] inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#else
  return xsimd::fma(a, b, c);
#endif
}

// The floats that are moved at once in a row: at most eight, the least stride.
#if defined(__AVX512F__)
using Part = __m256;
#else
using Part = Floats;
#endif
constexpr std::size_t kPart = sizeof(Part) / sizeof(float);

/// Calls `use(offset, part)` for each part of a register.
template <class Use>
[[gnu::always_inline]] inline void parts_of(Floats x, Use use) {
#if defined(__AVX512F__)
  use(0, _mm512_castps512_ps256(x));
  use(kPart, _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
#else
  use(0, x);
#endif
}

[[gnu::always_inline]] inline Part load_part(const float* from) {
#if defined(__AVX512F__)
  return _mm256_loadu_ps(from);
#else
  return Floats::load_unaligned(from);
#endif
}

/// A register from the parts that `part(offset)` gives.
template <class Get>
[[gnu::always_inline]] inline Floats joined(Get part) {
#if defined(__AVX512F__)
  return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_castps_pd(part(0))),
                                             _mm256_castps_pd(part(kPart)), 1));
#else
  return part(0);
#endif
}

/// STREAM: writes past the caches; REQUIRES: `to` is aligned to the size of a part.
template <bool STREAM>
[[gnu::always_inline]] inline void store_part(float* to, Part part) {
#if defined(__AVX2__)
  if constexpr (STREAM) {
    _mm256_stream_ps(to, part);
  } else {
    _mm256_storeu_ps(to, part);
  }
#elif defined(__SSE2__)
  if constexpr (STREAM) {
    _mm_stream_ps(to, part);
  } else {
    _mm_storeu_ps(to, part);
  }
#else
  part.store_unaligned(to);
#endif
}

/// Makes streamed data visible to other threads.
inline void fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

inline void prefetch(const float* from) {
  __builtin_prefetch(from, 0, 2);  // to the second cache: a block fills half of the first one
}

}  // namespace
}  // namespace tarpon::codec::kernels
