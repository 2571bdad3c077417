// The Hadamard matrix times a block, in passes.
//
// The n = 2^L elements of a block are gone through in passes. A pass works on up to 2^kMostBits
// registers at once: it does up to kMostBits butterfly distances, the longest first. The last pass
// does the distances within a register as well. All copies add the same pairs in the same order.
//
// Internal linkage: this is compiled for several instruction sets (see transform.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "codec/kernels/registers.h"
#include "codec/layout.h"

namespace tarpon::codec::kernels {
namespace {

// Registers: 32 with AVX-512, else 16 (32 on NEON), half of them for data.
constexpr unsigned kMostBits = kLanes == 16 ? 4 : 3;

#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

constexpr unsigned log2_of(std::uint32_t value) {
  return 31 - static_cast<unsigned>(__builtin_clz(value));
}

/// Lane i gets lane i ^ DISTANCE. xsimd's swizzle() uses the general permutation for that, which
/// costs twice as much as the instructions that the compiler finds.
template <std::size_t DISTANCE, std::size_t... LANE>
[[gnu::always_inline]] inline Floats partners(Floats x, std::index_sequence<LANE...>) {
  return Floats(__builtin_shufflevector(x.data, x.data, (LANE ^ DISTANCE)...));
}

template <std::uint32_t DISTANCE>
Floats ends() {
  alignas(64) float sign[kLanes];
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) sign[lane] = (lane & DISTANCE) != 0 ? -1 : 1;
  return Floats::load_aligned(sign);
}

/// Butterflies within a register, longest distance first: a + b where the lane's bit is 0, a - b
/// where it is 1; a product with 1 or -1 is exact.
template <std::uint32_t DISTANCE>
[[gnu::always_inline]] inline Floats within(Floats x) {
  if constexpr (DISTANCE == 0) {
    return x;
  } else {
    const Floats partner = partners<DISTANCE>(x, std::make_index_sequence<kLanes>());
    return within<DISTANCE / 2>(fused(x, ends<DISTANCE>(), partner));
  }
}

// 1, but the compiler must not know.
const volatile float opaque_one = 1;

/// FUSED: sums go through the multipliers and differences through the adders, which are separate in
/// AMD's processors (5 % faster): a x 1 + b is a + b to the bit.
template <unsigned BITS, bool FUSED>
[[gnu::always_inline]] inline void between(Floats* x, Floats one) {
#pragma GCC unroll 4
  for (std::uint32_t half = (1u << BITS) / 2; half > 0; half /= 2) {
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < 1u << BITS; ++i) {
      if ((i & half) != 0) continue;
      const Floats a = x[i], b = x[i + half];
      x[i] = FUSED ? fused(a, one, b) : a + b;
      x[i + half] = a - b;
    }
  }
}

/// Does the BITS distances `longest`, longest / 2, ...; if LAST, also those within a register.
/// `load(base, i, step, offset)` returns register i: the elements from base + i x step + offset on.
template <unsigned BITS, bool LAST, class Load, class Store>
[[gnu::always_inline]] inline void pass(std::size_t n, std::size_t longest, Load load,
                                        Store store) {
  constexpr std::size_t kRegisters = std::size_t{1} << BITS;
  const std::size_t step = LAST ? kLanes : longest >> (BITS - 1);
  const Floats one(opaque_one);
  for (std::size_t base = 0; base < n; base += step * kRegisters) {
    for (std::size_t offset = 0; offset < step; offset += kLanes) {
      Floats x[kRegisters];
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kRegisters; ++i) x[i] = load(base, i, step, offset);
      between<BITS, kFused && !LAST>(x, one);
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kRegisters; ++i) {
        store(base + i * step + offset, LAST ? within<kLanes / 2>(x[i]) : x[i]);
      }
    }
  }
}

template <bool LAST, class Load, class Store>
[[gnu::always_inline]] inline void pass_of(unsigned bits, std::size_t n, std::size_t longest,
                                           Load load, Store store) {
  switch (bits) {
    case 1:
      return pass<1, LAST>(n, longest, load, store);
    case 2:
      return pass<2, LAST>(n, longest, load, store);
    case 3:
      return pass<3, LAST>(n, longest, load, store);
    default:
      if constexpr (kMostBits == 4) return pass<4, LAST>(n, longest, load, store);
  }
}

/// Multiplies n elements by H without scaling. `load` returns the elements to the first pass,
/// `store` takes the results of the last. `scratch` holds intermediate results, and may be the
/// memory that `load` and `store` work on. After the first pass the parts of `scratch` are
/// transforms of their own, done one after the other, so that each stays in the first cache.
template <class Load, class Store>
[[gnu::always_inline]] inline void hadamard(std::size_t n, float* scratch, Load load, Store store) {
  // Blocks are so long that there is always more than one pass.
  const unsigned bits = log2_of(static_cast<std::uint32_t>(n)) - log2_of(kLanes);
  const unsigned first = n > kUsualBlock ? log2_of(static_cast<std::uint32_t>(n / kUsualBlock))
                         : bits > 2 * kMostBits ? kMostBits
                                                : bits - bits / 2;
  pass_of<false>(first, n, n / 2, load,
                 [scratch](std::size_t at, Floats x) { x.store_unaligned(scratch + at); });
  const std::size_t part = n >> first;
  for (std::size_t start = 0; start < n; start += part) {
    float* const here = scratch + start;
    const auto load_here = [here](std::size_t base, std::size_t i, std::size_t step,
                                  std::size_t offset) {
      return Floats::load_unaligned(here + base + i * step + offset);
    };
    unsigned left = bits - first;
    std::size_t longest = part / 2;
    while (left > kMostBits) {
      const unsigned now = left > 2 * kMostBits ? kMostBits : left - left / 2;
      pass_of<false>(now, part, longest, load_here,
                     [here](std::size_t at, Floats x) { x.store_unaligned(here + at); });
      left -= now;
      longest >>= now;
    }
    pass_of<true>(left, part, longest, load_here,
                  [&](std::size_t at, Floats x) { store(start + at, x); });
  }
}

}  // namespace
}  // namespace tarpon::codec::kernels
