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

constexpr std::uint32_t least(std::uint32_t a, std::uint32_t b) {
  return a < b ? a : b;
}

constexpr unsigned log2_of(std::uint32_t value) {
  return 31 - static_cast<unsigned>(__builtin_clz(value));
}

// -- passes
// ----------------------------------------------------------------------------------------

template <std::uint32_t DISTANCE>
struct Partner {
  static constexpr std::uint32_t get(std::uint32_t lane, std::uint32_t) { return lane ^ DISTANCE; }
};

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
    const Floats partner =
        xsimd::swizzle(x, xsimd::make_batch_constant<Words, Partner<DISTANCE>>());
    return within<DISTANCE / 2>(xsimd::fma(x, ends<DISTANCE>(), partner));
  }
}

template <unsigned BITS>
[[gnu::always_inline]] inline void between(Floats* x) {
#pragma GCC unroll 4
  for (std::uint32_t half = (1u << BITS) / 2; half > 0; half /= 2) {
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < 1u << BITS; ++i) {
      if ((i & half) != 0) continue;
      const Floats a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
}

/// Distances `longest`, longest / 2, ... as many as BITS; LAST: and those within a register.
template <unsigned BITS, bool LAST, class Load, class Store>
[[gnu::always_inline]] inline void pass(std::uint32_t n, std::uint32_t longest, Load load,
                                        Store store) {
  constexpr std::uint32_t kRegisters = 1u << BITS;
  const std::uint32_t step = LAST ? kLanes : longest >> (BITS - 1);
  for (std::uint32_t base = 0; base < n; base += step * kRegisters) {
    for (std::uint32_t at = base; at < base + step; at += kLanes) {
      Floats x[kRegisters];
#pragma GCC unroll 16
      for (std::uint32_t i = 0; i < kRegisters; ++i) x[i] = load(at + i * step);
      between<BITS>(x);
#pragma GCC unroll 16
      for (std::uint32_t i = 0; i < kRegisters; ++i) {
        store(at + i * step, LAST ? within<kLanes / 2>(x[i]) : x[i]);
      }
    }
  }
}

template <bool LAST, class Load, class Store>
void pass_of(unsigned bits, std::uint32_t n, std::uint32_t longest, Load load, Store store) {
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
[[gnu::always_inline]] inline void hadamard(std::uint32_t n, float* scratch, Load load,
                                            Store store) {
  const auto load_scratch = [scratch](std::uint32_t at) {
    return Floats::load_unaligned(scratch + at);
  };
  const auto store_scratch = [scratch](std::uint32_t at, Floats x) {
    x.store_unaligned(scratch + at);
  };
  // Blocks are so long that there is always more than one pass.
  unsigned bits = log2_of(n) - log2_of(kLanes);
  const unsigned first = bits > 2 * kMostBits ? kMostBits : bits - bits / 2;
  pass_of<false>(first, n, n / 2, load, store_scratch);
  bits -= first;
  std::uint32_t longest = n / 2 >> first;
  while (bits > kMostBits) {
    const unsigned now = bits > 2 * kMostBits ? kMostBits : bits - bits / 2;
    pass_of<false>(now, n, longest, load_scratch, store_scratch);
    bits -= now;
    longest >>= now;
  }
  pass_of<true>(bits, n, longest, load_scratch, store);
}

// -- a block
// ---------------------------------------------------------------------------------------

void make_words(SignKey key, std::uint64_t block, std::uint32_t n, std::uint32_t* words) {
  const std::uint32_t count = sign_words(n);
  for (std::uint32_t word = 0; word < count; ++word) words[word] = sign_word(key, block, n, word);
}

/// The signs of elements [at, at + kLanes) of a block, in the sign bit.
[[gnu::always_inline]] inline Floats signs_at(const std::uint32_t* words, std::uint32_t at) {
  const Words sixteen =
      Words::load_unaligned(words + at / kSignGroup * kSignLanes + at % kSignLanes);
  return xsimd::bitwise_cast<Floats>((sixteen << static_cast<int>(at / kSignLanes % 32)) &
                                     Words(0x80000000u));
}

/// The coefficients of one block into `scratch`; false when an element is too large.
bool forward(SignKey key, std::uint64_t block, std::uint32_t n, const float* in,
             std::uint32_t length, float scale, float* scratch) {
  alignas(64) std::uint32_t words[kMostBlock / 32];
  make_words(key, block, n, words);
  if (length < n) {
    __builtin_memcpy(scratch, in, length * sizeof(float));
    __builtin_memset(scratch + length, 0, (n - length) * sizeof(float));
    in = scratch;
  }
  xsimd::batch_bool<float, Arch> small(true);
  const Floats largest(kLargest);
  hadamard(
      n, scratch,
      [&](std::uint32_t at) {
        const Floats x = Floats::load_unaligned(in + at);
        small = small & (xsimd::abs(x) <= largest);
        return x ^ signs_at(words, at);
      },
      [&](std::uint32_t at, Floats x) { (x * Floats(scale)).store_unaligned(scratch + at); });
  return xsimd::all(small);
}

/// The elements of one block, from the coefficients in `scratch`.
void inverse(SignKey key, std::uint64_t block, std::uint32_t n, float* scratch, float scale,
             float* out, std::uint32_t length) {
  alignas(64) std::uint32_t words[kMostBlock / 32];
  make_words(key, block, n, words);
  float* const to = length < n ? scratch : out;
  hadamard(
      n, scratch, [&](std::uint32_t at) { return Floats::load_unaligned(scratch + at); },
      [&](std::uint32_t at, Floats x) {
        (x * (Floats(scale) ^ signs_at(words, at))).store_unaligned(to + at);
      });
  if (length < n) __builtin_memcpy(out, scratch, length * sizeof(float));
}

// -- rows
// ------------------------------------------------------------------------------------------

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

}  // namespace

#define TARPON_JOIN_NOW(a, b) a##b
#define TARPON_JOIN(a, b) TARPON_JOIN_NOW(a, b)

bool TARPON_JOIN(encode_, TARPON_CODEC_SET)(const CodedLayout& layout, SignKey key, const float* in,
                                            float* coded, float* scratch) {
  const Shape shape(layout);
  const float scale = root(shape.n);
  bool good = true;
  for (std::uint32_t group = 0; group < shape.groups; ++group) {
    for (std::uint32_t member = 0; member < shape.members; member += kTogether) {
      const std::uint32_t together = least(kTogether, shape.members - member);
      for (std::uint32_t i = 0; i < together; ++i) {
        const std::uint64_t block = group + std::uint64_t{member + i} * shape.groups;
        float* const room = scratch + i * shape.pitch;
        if (block < shape.blocks) {
          good &=
              forward(key, block, shape.n, in + block * shape.n, shape.length(block), scale, room);
          __builtin_memset(room + shape.n, 0, (shape.pitch - shape.n) * sizeof(float));
        } else {
          __builtin_memset(room, 0, shape.pitch * sizeof(float));
        }
      }
      if (!good) return false;
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

void TARPON_JOIN(decode_, TARPON_CODEC_SET)(const CodedLayout& layout, SignKey key,
                                            const float* coded, const float* gains, float* out,
                                            float* scratch) {
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
        const std::uint64_t block = group + std::uint64_t{member + i} * shape.groups;
        if (block >= shape.blocks) break;
        inverse(key, block, shape.n, scratch + i * shape.pitch, scale, out + block * shape.n,
                shape.length(block));
      }
    }
  }
}

}  // namespace tarpon::codec::kernels
