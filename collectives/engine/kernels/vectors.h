// Elements in vectors of floats: for reduce_loops.cc alone. That file is compiled once per
// instruction set, so everything here has internal linkage.
//
// float16 and bfloat16 are widened exactly and computed in float32. They are rounded to nearest,
// ties to even. The processor's conversions are used where the instruction set has them (F16C,
// AVX-512); the plain ones give the same bits: subnormal float16 are not flushed, a NaN stays one
// and is made quiet, values from 65520 on become infinite.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is meant
namespace tarpon::kernels {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kLanes = 16;
#elif defined(__AVX2__)
constexpr std::size_t kLanes = 8;
#else
constexpr std::size_t kLanes = 4;
#endif

using Floats [[gnu::vector_size(4 * kLanes)]] = float;
using Doubles [[gnu::vector_size(4 * kLanes)]] = double;
using Words [[gnu::vector_size(4 * kLanes)]] = std::uint32_t;
using LongWords [[gnu::vector_size(4 * kLanes)]] = std::uint64_t;
using Halves [[gnu::vector_size(2 * kLanes)]] = std::uint16_t;

template <typename Vector>
Vector load_vector(const std::byte* bytes) {
  Vector value;
  __builtin_memcpy(&value, bytes, sizeof value);
  return value;
}

template <typename Vector>
void store_vector(std::byte* bytes, const Vector& value) {
  __builtin_memcpy(bytes, &value, sizeof value);
}

Words words(const Halves& halves) {
  return __builtin_convertvector(halves, Words);
}

Halves halves(const Words& words) {
  return __builtin_convertvector(words, Halves);
}

Words bits(const Floats& values) {
  return __builtin_bit_cast(Words, values);
}

LongWords bits(const Doubles& values) {
  return __builtin_bit_cast(LongWords, values);
}

Floats floats(const Words& bits) {
  return __builtin_bit_cast(Floats, bits);
}

/// All ones where the comparison holds, else zero.
template <typename Comparison>
Words mask(const Comparison& comparison) {
  return __builtin_bit_cast(Words, comparison);
}

Words select(const Words& mask, const Words& yes, const Words& no) {
  return (yes & mask) | (no & ~mask);
}

constexpr std::uint32_t kFloatInfinity = 0x7f800000;
constexpr std::uint32_t kFloatSign = 0x80000000;
#if defined(__F16C__)
constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT;
#endif
#if defined(__AVX512F__)
// g++ 12 warns of the intrinsics without a mask (GCC bug 105593); the instructions are the same.
constexpr __mmask16 kAllLanes = 0xffff;
#endif

/// float32, as partial results are.
struct Single {
  static constexpr std::size_t kBytes = 4;
  static Floats load(const std::byte* bytes) { return load_vector<Floats>(bytes); }
  static void store(std::byte* bytes, const Floats& values) { store_vector(bytes, values); }
};

struct Double {
  static constexpr std::size_t kBytes = 8;
  static Doubles load(const std::byte* bytes) { return load_vector<Doubles>(bytes); }
  static void store(std::byte* bytes, const Doubles& values) { store_vector(bytes, values); }
};

struct Bfloat16 {
  static constexpr std::size_t kBytes = 2;
  static constexpr int kMantissa = 7;

  static Floats load(const std::byte* bytes) {
    return floats(words(load_vector<Halves>(bytes)) << 16);
  }

  static void store(std::byte* bytes, const Floats& values) {
    const Words from = bits(values);
    const Words rounded = (from + 0x7fff + (from >> 16 & 1)) >> 16;
    const Words nan = mask((from & ~kFloatSign) > kFloatInfinity);
    store_vector(bytes, halves(select(nan, from >> 16 | 0x40, rounded)));
  }
};

struct Float16 {
  static constexpr std::size_t kBytes = 2;
  static constexpr int kMantissa = 10;

  static Floats load(const std::byte* bytes) {
#if defined(__AVX512F__)
    return _mm512_maskz_cvtph_ps(kAllLanes, load_vector<__m256i>(bytes));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(load_vector<__m128i>(bytes));
#else
    // The bias of the exponent grows by 112. The product makes subnormal values normal.
    constexpr float k2Pow112 = 5192296858534827628530496329220096.0f;
    const Words from = words(load_vector<Halves>(bytes));
    const Words magnitude = (from & 0x7fff) << 13;
    const Words infinite = mask((from & 0x7c00) == 0x7c00);
    const Words quiet = mask((from & 0x7fff) > 0x7c00) & 0x400000;
    const Words wide =
        select(infinite, magnitude | kFloatInfinity | quiet, bits(floats(magnitude) * k2Pow112));
    return floats(wide | (from & 0x8000) << 16);
#endif
  }

  static void store(std::byte* bytes, const Floats& values) {
#if defined(__AVX512F__)
    store_vector(bytes, _mm512_maskz_cvtps_ph(kAllLanes, values, kToNearest));
#elif defined(__F16C__)
    store_vector(bytes, _mm256_cvtps_ph(values, kToNearest));
#else
    const Words from = bits(values);
    const Words magnitude = from & ~kFloatSign;
    const Words normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    // One unit in the last place of 0.5f is the smallest float16, so that the addition rounds.
    const Words subnormal = bits(floats(magnitude) + 0.5f) - 0x3f000000;
    Words result = select(mask(magnitude < 113u << 23), subnormal, normal);    // below 2^-14
    result = select(mask(magnitude >= 0x477ff000), Words{} + 0x7c00, result);  // from 65520 on
    const Words nan = (magnitude >> 13 & 0x3ff) | 0x7e00;
    result = select(mask(magnitude > kFloatInfinity), nan, result);
    store_vector(bytes, halves(result | (from >> 16 & 0x8000)));
#endif
  }
};

}  // namespace
}  // namespace tarpon::kernels
// NOLINTEND(misc-definitions-in-headers)
