// The block transform and its way into rows and back, as templates on xsimd's architecture.
//
// CMake compiles this file once per instruction set, with TARPON_CODEC_SET naming the set and
// TARPON_CODEC_ARCH its xsimd architecture. Everything has internal linkage, and nothing inline of
// another header is called that is not a template on the architecture: the linker would otherwise
// merge the copies and hand AVX code to processors without it.
//
// A block goes through its n = 2^L elements in passes of up to 2^kMostBits registers: each pass
// does as many butterfly distances at once, the longest first; the last one does those within a
// register as well. All copies add the same pairs in the same order.
#include <xsimd/xsimd.hpp>

#include <cstddef>
#include <utility>

#include "codec/kernels/kernel_sets.h"
#include "codec/kernels/signs.h"

namespace tarpon::codec::kernels {
namespace {

using Arch = TARPON_CODEC_ARCH;
using Floats = xsimd::batch<float, Arch>;
using Words = xsimd::batch<std::uint32_t, Arch>;
constexpr std::uint32_t kLanes = Floats::size;

// Registers: 32 with AVX-512, else 16 (32 on NEON), half of them for data.
constexpr unsigned kMostBits = kLanes == 16 ? 4 : 3;

#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

constexpr float kLargestFinite = 0x1.fffffep+127f;

constexpr std::uint32_t least(std::uint32_t a, std::uint32_t b) {
  return a < b ? a : b;
}

constexpr unsigned log2_of(std::uint32_t value) {
  return 31 - static_cast<unsigned>(__builtin_clz(value));
}

// -- passes --------------------------------------------------------------------------------------

/// Lane i gets lane i ^ DISTANCE. xsimd's swizzle() takes the general permutation for it, which
/// costs twice as much as those that the compiler finds.
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
    return within<DISTANCE / 2>(xsimd::fma(x, ends<DISTANCE>(), partner));
  }
}

// 1, but the compiler must not know.
const volatile float opaque_one = 1;

/// FUSED: sums go through the multipliers and differences through the adders, which AMD's
/// processors have apart (5 % faster): a x 1 + b is a + b to the bit.
template <unsigned BITS, bool FUSED>
[[gnu::always_inline]] inline void between(Floats* x, Floats one) {
#pragma GCC unroll 4
  for (std::uint32_t half = (1u << BITS) / 2; half > 0; half /= 2) {
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < 1u << BITS; ++i) {
      if ((i & half) != 0) continue;
      const Floats a = x[i], b = x[i + half];
      x[i] = FUSED ? xsimd::fma(a, one, b) : a + b;
      x[i + half] = a - b;
    }
  }
}

/// Distances `longest`, longest / 2, ... as many as BITS; LAST: and those within a register.
/// `load(base, i, step, offset)` gives elements from base + i x step + offset on: register i.
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

/// H of n elements without scaling. `load` gives the elements first, `store` takes the results;
/// `scratch` holds what lies between, and may be what they work on.
template <class Load, class Store>
[[gnu::always_inline]] inline void hadamard(std::size_t n, float* scratch, Load load, Store store) {
  const auto load_scratch = [scratch](std::size_t base, std::size_t i, std::size_t step,
                                      std::size_t offset) {
    return Floats::load_unaligned(scratch + base + i * step + offset);
  };
  const auto store_scratch = [scratch](std::size_t at, Floats x) {
    x.store_unaligned(scratch + at);
  };
  // Blocks are so long that there is always more than one pass.
  unsigned bits = log2_of(static_cast<std::uint32_t>(n)) - log2_of(kLanes);
  const unsigned first = bits > 2 * kMostBits ? kMostBits : bits - bits / 2;
  pass_of<false>(first, n, n / 2, load, store_scratch);
  bits -= first;
  std::size_t longest = n / 2 >> first;
  while (bits > kMostBits) {
    const unsigned now = bits > 2 * kMostBits ? kMostBits : bits - bits / 2;
    pass_of<false>(now, n, longest, load_scratch, store_scratch);
    bits -= now;
    longest >>= now;
  }
  pass_of<true>(bits, n, longest, load_scratch, store);
}

// -- a block -------------------------------------------------------------------------------------

[[gnu::always_inline]] inline Floats sign_bits(Words words) {
  return xsimd::bitwise_cast<Floats>(words & Words(0x80000000u));
}

/// The block that is worked on: N elements where that is known here, else N is 0.
template <std::uint32_t N>
struct Block {
  SignKey key;
  std::uint64_t number;
  std::uint32_t elements;

  [[gnu::always_inline]] std::uint32_t n() const { return N != 0 ? N : elements; }
  [[gnu::always_inline]] void make_words(std::uint32_t* to) const {
    for (std::uint32_t word = 0; word < sign_words(n()); ++word) {
      to[word] = sign_word(key, number, n(), word);
    }
  }
};

/// The coefficients of a block, by `store`. False when an element is not finite: then no
/// coefficient is, since each is a sum of all elements, and one look tells.
template <std::uint32_t N, class Store>
[[gnu::always_inline]] inline bool forward(const Block<N>& block, const float* in,
                                           std::uint32_t length, float scale, float* scratch,
                                           Store store) {
  alignas(64) std::uint32_t words[kMostBlock / 32];
  block.make_words(words);
  const std::size_t n = block.n(), count = sign_words(block.n());
  if (length < n) {
    __builtin_memcpy(scratch, in, length * sizeof(float));
    __builtin_memset(scratch + length, 0, (n - length) * sizeof(float));
    in = scratch;
  }
  Floats last(0.0f);
  hadamard(
      n, scratch,
      [&](std::size_t, std::size_t i, std::size_t step, std::size_t offset) {
        // The first pass has one base, and a step that is a multiple of `count`.
        const Words here = Words::load_aligned(words + offset % count)
                           << static_cast<int>(offset / count + i * (step / count));
        return Floats::load_unaligned(in + i * step + offset) * (Floats(scale) ^ sign_bits(here));
      },
      [&](std::size_t at, Floats x) {
        store(at, x);
        last = x;
      });
  return xsimd::all(xsimd::abs(last) <= Floats(kLargestFinite));
}

/// The elements of a block, from the coefficients in `scratch`.
template <std::uint32_t N>
[[gnu::always_inline]] inline void inverse(const Block<N>& block, float* scratch, float scale,
                                           float* out, std::uint32_t length) {
  alignas(64) std::uint32_t words[kMostBlock / 32];
  block.make_words(words);
  const std::size_t n = block.n(), count = sign_words(block.n());
  float* const to = length < n ? scratch : out;
  hadamard(
      n, scratch,
      [&](std::size_t base, std::size_t i, std::size_t step, std::size_t offset) {
        return Floats::load_unaligned(scratch + base + i * step + offset);
      },
      [&](std::size_t at, Floats x) {
        const Words here = Words::load_aligned(words + at % count) << static_cast<int>(at / count);
        (x * (Floats(scale) ^ sign_bits(here))).store_unaligned(to + at);
      });
  if (length < n) __builtin_memcpy(out, scratch, length * sizeof(float));
}

// -- rows ----------------------------------------------------------------------------------------

/// `count` floats; copies of eight, the last one over what the one before has copied.
[[gnu::always_inline]] inline void copy_run(float* to, const float* from, std::uint32_t count) {
  std::uint32_t i = 0;
  for (; i + 8 <= count; i += 8) __builtin_memcpy(to + i, from + i, 8 * sizeof(float));
  if (i < count) {
    __builtin_memcpy(to + count - 8, from + count - 8, 8 * sizeof(float));
  }
}

/// What the loops need of a layout.
struct Shape {
  std::uint32_t n, stride, groups, members, rows, row_elements, pitch;
  std::uint64_t blocks, count;

  explicit Shape(const CodedLayout& layout)
      : n(layout.block),
        stride(layout.stride),
        groups(layout.groups),
        members(layout.members),
        rows((n + stride - 1) / stride),
        row_elements(members * stride),
        pitch(scratch_pitch(rows * stride)),
        blocks((layout.count + n - 1) / n),
        count(layout.count) {}

  std::uint32_t length(std::uint64_t block) const {
    const std::uint64_t left = count - block * n;
    return left < n ? static_cast<std::uint32_t>(left) : n;
  }
  /// Whether the coefficients of a block lie in order in the coded bucket.
  bool stays() const { return members == 1 && (groups == 1 || rows == 1); }
  float* row(float* coded, std::uint32_t group, std::uint32_t row) const {
    return coded + (std::uint64_t{row} * groups + group) * row_elements;
  }
};

float root(std::uint32_t n) {
  return 1 / __builtin_sqrtf(static_cast<float>(n));
}

/// `together` blocks into the rows of their group. STRIDE: the layout's, where it is known here.
template <std::uint32_t STRIDE>
void scatter(const Shape& shape, const float* scratch, std::uint32_t together, float* to) {
  const std::uint32_t stride = STRIDE != 0 ? STRIDE : shape.stride;
  const std::uint64_t between_rows = std::uint64_t{shape.groups} * shape.row_elements;
  for (std::uint32_t row = 0; row < shape.rows; ++row, to += between_rows) {
    for (std::uint32_t i = 0; i < together; ++i) {
      copy_run(to + i * stride, scratch + i * shape.pitch + row * stride, stride);
    }
  }
}

/// And back.
template <std::uint32_t STRIDE>
void gather(const Shape& shape, const float* from, std::uint32_t together, float* scratch) {
  const std::uint32_t stride = STRIDE != 0 ? STRIDE : shape.stride;
  const std::uint64_t between_rows = std::uint64_t{shape.groups} * shape.row_elements;
  for (std::uint32_t row = 0; row < shape.rows; ++row, from += between_rows) {
    for (std::uint32_t i = 0; i < together; ++i) {
      copy_run(scratch + i * shape.pitch + row * stride, from + i * stride, stride);
    }
  }
}

/// Where coefficients stay in order, nothing lies between the last pass and the rows.
template <std::uint32_t N>
bool encode_in_order(const Shape& shape, SignKey key, const float* in, float* coded,
                     float* scratch) {
  const std::size_t span = std::size_t{shape.rows} * shape.row_elements;
  for (std::uint64_t number = 0; number < shape.blocks; ++number) {
    float* const to = coded + number * span;
    const Block<N> block{key, number, shape.n};
    const auto store = [to](std::size_t at, Floats x) { x.store_unaligned(to + at); };
    if (!forward(block, in + number * shape.n, shape.length(number), root(shape.n), scratch,
                 store)) {
      return false;
    }
    __builtin_memset(to + shape.n, 0, (span - shape.n) * sizeof(float));
  }
  return true;
}

template <std::uint32_t N>
bool encode(const CodedLayout& layout, SignKey key, const float* in, float* coded, float* scratch) {
  const Shape shape(layout);
  const float scale = root(shape.n);
  if (shape.stays()) return encode_in_order<N>(shape, key, in, coded, scratch);
  for (std::uint32_t group = 0; group < shape.groups; ++group) {
    for (std::uint32_t member = 0; member < shape.members; member += kTogether) {
      const std::uint32_t together = least(kTogether, shape.members - member);
      for (std::uint32_t i = 0; i < together; ++i) {
        const std::uint64_t number = group + std::uint64_t{member + i} * shape.groups;
        float* const room = scratch + i * shape.pitch;
        if (number >= shape.blocks) {
          __builtin_memset(room, 0, shape.pitch * sizeof(float));
          continue;
        }
        const Block<N> block{key, number, shape.n};
        const auto store = [room](std::size_t at, Floats x) { x.store_unaligned(room + at); };
        if (!forward(block, in + number * shape.n, shape.length(number), scale, room, store)) {
          return false;
        }
        __builtin_memset(room + shape.n, 0, (shape.pitch - shape.n) * sizeof(float));
      }
      float* const to = shape.row(coded, group, 0) + member * shape.stride;
      if (shape.stride == 8) {
        scatter<8>(shape, scratch, together, to);
      } else {
        scatter<0>(shape, scratch, together, to);
      }
    }
  }
  return true;
}

template <std::uint32_t N>
void decode(const CodedLayout& layout, SignKey key, const float* coded, const float* gains,
            float* out, float* scratch) {
  const Shape shape(layout);
  for (std::uint32_t group = 0; group < shape.groups; ++group) {
    if (gains[group] == 0) continue;
    const float scale = root(shape.n) * gains[group];
    for (std::uint32_t member = 0; member < shape.members; member += kTogether) {
      const std::uint32_t together = least(kTogether, shape.members - member);
      const float* const from =
          shape.row(const_cast<float*>(coded), group, 0) + member * shape.stride;
      if (shape.stride == 8) {
        gather<8>(shape, from, together, scratch);
      } else {
        gather<0>(shape, from, together, scratch);
      }
      for (std::uint32_t i = 0; i < together; ++i) {
        const std::uint64_t number = group + std::uint64_t{member + i} * shape.groups;
        if (number >= shape.blocks) break;
        inverse(Block<N>{key, number, shape.n}, scratch + i * shape.pitch, scale,
                out + number * shape.n, shape.length(number));
      }
    }
  }
}

}  // namespace

#define TARPON_JOIN_NOW(a, b) a##b
#define TARPON_JOIN(a, b) TARPON_JOIN_NOW(a, b)

bool TARPON_JOIN(encode_, TARPON_CODEC_SET)(const CodedLayout& layout, SignKey key, const float* in,
                                            float* coded, float* scratch) {
  return layout.block == kUsualBlock ? encode<kUsualBlock>(layout, key, in, coded, scratch)
                                     : encode<0>(layout, key, in, coded, scratch);
}

void TARPON_JOIN(decode_, TARPON_CODEC_SET)(const CodedLayout& layout, SignKey key,
                                            const float* coded, const float* gains, float* out,
                                            float* scratch) {
  return layout.block == kUsualBlock ? decode<kUsualBlock>(layout, key, coded, gains, out, scratch)
                                     : decode<0>(layout, key, coded, gains, out, scratch);
}

}  // namespace tarpon::codec::kernels
