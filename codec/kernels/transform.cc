// The transform of blocks into rows and back, as templates on xsimd's architecture.
//
// CMake compiles this file once per instruction set, with TARPON_CODEC_SET naming the set and
// TARPON_CODEC_ARCH its xsimd architecture. Everything has internal linkage, and an inline function
// of another header is called only if it is a template on the architecture: the linker would
// otherwise merge the copies and hand AVX code to processors without it.
#include <cstddef>
#include <cstdint>

#include "codec/kernels/kernel_sets.h"
#include "codec/kernels/passes.h"
#include "codec/kernels/registers.h"
#include "codec/kernels/signs.h"

namespace tarpon::codec::kernels {
namespace {

constexpr float kLargestFinite = 0x1.fffffep+127f;

// -- a block -------------------------------------------------------------------------------------

[[gnu::always_inline]] inline Floats sign_bits(Words words) {
  return xsimd::bitwise_cast<Floats>(words & Words(0x80000000u));
}

/// The block that is worked on. N is its size if that is known at compile time, else 0.
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

/// Passes the coefficients of a block to `store`. Returns false when an element is not finite: then
/// no coefficient is finite, since each is a sum of all elements, and checking one register is
/// enough.
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
        const Words first = Words::load_aligned(words + offset % count)
                            << static_cast<int>(offset / count);
        const Words here = first << static_cast<int>(i * (step / count));
        return Floats::load_unaligned(in + i * step + offset) * (Floats(scale) ^ sign_bits(here));
      },
      [&](std::size_t at, Floats x) {
        store(at, x);
        last = x;
      });
  return xsimd::all(xsimd::abs(last) <= Floats(kLargestFinite));
}

/// Decodes a block: `load(at)` returns its coefficients, `store(at, elements)` takes its elements.
template <std::uint32_t N, class Load, class Store>
[[gnu::always_inline]] inline void inverse(const Block<N>& block, float* scratch, float scale,
                                           Load load, Store store) {
  alignas(64) std::uint32_t words[kMostBlock / 32];
  block.make_words(words);
  const std::size_t n = block.n(), count = sign_words(block.n());
  hadamard(
      n, scratch,
      [&](std::size_t, std::size_t i, std::size_t step, std::size_t offset) {
        return load(i * step + offset);
      },
      [&](std::size_t at, Floats x) {
        const Words here = Words::load_aligned(words + at % count) << static_cast<int>(at / count);
        store(at, x * (Floats(scale) ^ sign_bits(here)));
      });
}

// -- rows ----------------------------------------------------------------------------------------

/// What the loops need of a layout.
struct Shape {
  std::uint32_t n, stride, groups, members, rows, row_pitch;
  std::uint64_t blocks, count;
  std::uint64_t from, to;  // members that are worked on, by number
  float scale;

  Shape(const CodedLayout& layout, MemberRange range)
      : n(layout.block),
        stride(layout.stride),
        groups(layout.groups),
        members(layout.members),
        rows((n + stride - 1) / stride),
        row_pitch(pitch_of(members, stride)),
        blocks((layout.count + n - 1) / n),
        count(layout.count),
        from(range.first),
        to(range.first + range.count),
        scale(1 / __builtin_sqrtf(static_cast<float>(n))) {}

  /// The value of CodedLayout::row_pitch(). Calling that function here would let the linker merge
  /// its copies of several instruction sets.
  static std::uint32_t pitch_of(std::uint32_t members, std::uint32_t stride) {
    const std::uint32_t lines = (members * stride + kLineStride - 1) / kLineStride;
    return (members > 1 ? lines | 1 : lines) * kLineStride;
  }
  std::uint32_t length(std::uint64_t block) const {
    const std::uint64_t left = count - block * n;
    return left < n ? static_cast<std::uint32_t>(left) : n;
  }
  std::uint32_t group(std::uint64_t at) const { return static_cast<std::uint32_t>(at / members); }
  std::uint32_t member(std::uint64_t at) const { return static_cast<std::uint32_t>(at % members); }
  /// Number of the block of member `at`.
  std::uint64_t number(std::uint64_t at) const {
    return group(at) + std::uint64_t{member(at)} * groups;
  }
  /// Whether the coefficients of a block lie in order in the coded bucket.
  bool stays() const { return members == 1 && (rows == 1 || (groups == 1 && row_pitch == stride)); }
  /// Where the first coefficient of member `at` lies in the coded bucket.
  std::uint64_t place(std::uint64_t at) const {
    return std::uint64_t{group(at)} * row_pitch + std::uint64_t{member(at)} * stride;
  }
  /// Elements from one run of `stride` coefficients of a block to the next.
  std::uint64_t pitch() const { return std::uint64_t{groups} * row_pitch; }
};

/// Copies `count` floats, at least 8, in steps of 16 and 8; the last step may overlap the one
/// before it.
[[gnu::always_inline]] inline void copy_run(float* to, const float* from, std::uint32_t count) {
  if (count < 16) {
    __builtin_memcpy(to, from, 8 * sizeof(float));
    __builtin_memcpy(to + count - 8, from + count - 8, 8 * sizeof(float));
    return;
  }
  std::uint32_t i = 0;
  for (; i + 16 <= count; i += 16) __builtin_memcpy(to + i, from + i, 16 * sizeof(float));
  for (; i + 8 <= count; i += 8) __builtin_memcpy(to + i, from + i, 8 * sizeof(float));
  if (i < count) __builtin_memcpy(to + count - 8, from + count - 8, 8 * sizeof(float));
}

bool aligned(const float* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 64 == 0;
}

/// Decodes a block from the coefficients that `load` returns. The last block may be short: then it
/// is decoded into `scratch`, and only its elements are copied to `out`. FAR: writes past the
/// caches if the block begins at a cache line.
template <bool FAR, std::uint32_t N, class Load, class Ahead>
[[gnu::always_inline]] inline void decode_block(const Shape& shape, const Block<N>& block,
                                                float gain, float* out, float* scratch, Load load,
                                                Ahead ahead) {
  const std::uint32_t length = shape.length(block.number);
  float* const there = out + block.number * block.n();
  float* const to = length < block.n() ? scratch : there;
  const bool stream = FAR && aligned(to);
  inverse(block, scratch, shape.scale * gain, load, [=](std::size_t at, Floats x) {
    if (stream) {
      parts_of(x, [=](std::size_t i, Part part) { store_part<true>(to + at + i, part); });
    } else {
      x.store_unaligned(to + at);
    }
    ahead(at);
  });
  if (length < block.n()) __builtin_memcpy(there, scratch, length * sizeof(float));
}

/// Passes the coefficients of block `number` to `store`, zeros if there is no such block. FAR:
/// prefetches the next block of the group.
template <std::uint32_t N, bool FAR, class Store>
[[gnu::always_inline]] inline bool transformed(const Shape& shape, SignKey key,
                                               std::uint64_t number, const float* in,
                                               float* scratch, Store store) {
  if (number >= shape.blocks) {
    for (std::size_t at = 0; at < shape.n; at += kLanes) store(at, Floats(0.0f));
    return true;
  }
  const float* const here = in + number * shape.n;
  const std::uint64_t ahead = number + shape.groups < shape.blocks ? shape.groups : 0;
  const float* const next = here + ahead * shape.n;
  return forward(Block<N>{key, number, shape.n}, here, shape.length(number), shape.scale, scratch,
                 [=](std::size_t at, Floats x) {
                   store(at, x);
                   if constexpr (FAR) prefetch(next + at);
                 });
}

// -- coefficients in order: passes read and write rows directly

template <std::uint32_t N>
bool encode_in_order(const Shape& shape, SignKey key, const float* in, float* coded,
                     float* scratch) {
  const std::size_t span = std::size_t{shape.rows} * shape.row_pitch;
  // Each group has one member here, so that member, group and block have the same number.
  for (std::uint64_t number = shape.from; number < shape.to && number < shape.blocks; ++number) {
    float* const to = coded + number * span;
    const Block<N> block{key, number, shape.n};
    if (!forward(block, in + number * shape.n, shape.length(number), shape.scale, scratch,
                 [to](std::size_t at, Floats x) { x.store_unaligned(to + at); })) {
      return false;
    }
    __builtin_memset(to + shape.n, 0, (span - shape.n) * sizeof(float));
  }
  return true;
}

template <std::uint32_t N>
void decode_in_order(const Shape& shape, SignKey key, const float* coded, const float* gains,
                     float* out, float* scratch) {
  const std::size_t span = std::size_t{shape.rows} * shape.row_pitch;
  for (std::uint64_t number = shape.from; number < shape.to && number < shape.blocks; ++number) {
    const float gain = gains[number % shape.groups];
    if (gain == 0) continue;
    const float* const from = coded + number * span;
    decode_block<false>(
        shape, Block<N>{key, number, shape.n}, gain, out, scratch,
        [from](std::size_t at) { return Floats::load_unaligned(from + at); }, [](std::size_t) {});
  }
}

// -- any stride: through scratch

template <std::uint32_t N>
bool encode_runs(const Shape& shape, SignKey key, const float* in, float* coded, float* scratch) {
  const std::uint64_t padded = std::uint64_t{shape.rows} * shape.stride;
  for (std::uint64_t here = shape.from; here < shape.to; ++here) {
    const auto store = [=](std::size_t at, Floats x) { x.store_unaligned(scratch + at); };
    if (!transformed<N, false>(shape, key, shape.number(here), in, scratch, store)) return false;
    __builtin_memset(scratch + shape.n, 0, (padded - shape.n) * sizeof(float));
    float* to = coded + shape.place(here);
    for (std::uint32_t row = 0; row < shape.rows; ++row, to += shape.pitch()) {
      copy_run(to, scratch + row * shape.stride, shape.stride);
    }
  }
  return true;
}

template <std::uint32_t N>
void decode_runs(const Shape& shape, SignKey key, const float* coded, const float* gains,
                 float* out, float* scratch) {
  for (std::uint64_t here = shape.from; here < shape.to; ++here) {
    const float gain = gains[shape.group(here)];
    const std::uint64_t number = shape.number(here);
    if (gain == 0 || number >= shape.blocks) continue;
    const float* from = coded + shape.place(here);
    for (std::uint32_t row = 0; row < shape.rows; ++row, from += shape.pitch()) {
      copy_run(scratch + row * shape.stride, from, shape.stride);
    }
    decode_block<false>(
        shape, Block<N>{key, number, shape.n}, gain, out, scratch,
        [=](std::size_t at) { return Floats::load_unaligned(scratch + at); }, [](std::size_t) {});
  }
}

// -- runs of eight: two blocks at a time fill cache lines

/// FAR: prefetches the input a block ahead and writes the output past the caches.
template <std::uint32_t N, bool FAR>
bool encode_eights(const Shape& shape, SignKey key, const float* in, float* coded, float* scratch) {
  const std::uint64_t pitch = shape.pitch();
  for (std::uint64_t here = shape.from; here < shape.to; ++here) {
    const std::uint64_t number = shape.number(here);
    float* const to = coded + shape.place(here);
    // A pair begins at an even member: only then does it fill whole cache lines.
    const std::uint32_t member = shape.member(here);
    if (member % 2 == 0 && member + 1 < shape.members && here + 1 < shape.to) {
      const auto left = [=](std::size_t at, Floats x) { x.store_unaligned(scratch + at); };
      const auto both = [=](std::size_t at, Floats x) {
        parts_of(x, [=](std::size_t offset, Part right) {
          float* const line = to + (at + offset) / 8 * pitch + (at + offset) % 8;
          store_part<FAR>(line, load_part(scratch + at + offset));
          store_part<FAR>(line + 8, right);
        });
      };
      if (!transformed<N, FAR>(shape, key, number, in, scratch + N, left)) return false;
      if (!transformed<N, FAR>(shape, key, number + shape.groups, in, scratch + N, both)) {
        return false;
      }
      ++here;
      continue;
    }
    const auto alone = [=](std::size_t at, Floats x) {
      parts_of(x, [=](std::size_t offset, Part part) {
        store_part<false>(to + (at + offset) / 8 * pitch + (at + offset) % 8, part);
      });
    };
    if (!transformed<N, FAR>(shape, key, number, in, scratch + N, alone)) return false;
  }
  if constexpr (FAR) fence();
  return true;
}

template <std::uint32_t N, bool FAR>
void decode_eights(const Shape& shape, SignKey key, const float* coded, const float* gains,
                   float* out, float* scratch) {
  const std::uint64_t pitch = shape.pitch();
  for (std::uint64_t here = shape.from; here < shape.to; ++here) {
    const float gain = gains[shape.group(here)];
    const std::uint64_t number = shape.number(here);
    if (gain == 0 || number >= shape.blocks) continue;
    const std::uint32_t member = shape.member(here);
    const float* const from = coded + shape.place(here);
    // Each block of a pair fetches half of what the next pair reads.
    const float* const next = from - member % 2 * 8 + (member + 2 < shape.members ? 16 : 0) +
                              member % 2 * (N / 16) * pitch;
    const auto load = [=](std::size_t at) {
      return joined([=](std::size_t offset) {
        return load_part(from + (at + offset) / 8 * pitch + (at + offset) % 8);
      });
    };
    decode_block<FAR>(shape, Block<N>{key, number, N}, gain, out, scratch, load,
                      [=](std::size_t at) {
                        if constexpr (FAR) prefetch(next + at / 16 * pitch);
                      });
  }
  if constexpr (FAR) fence();
}

// -- runs of sixteen fill a cache line each

/// FAR: prefetches the input a block ahead and writes the output past the caches.
template <std::uint32_t N, bool FAR>
bool encode_lines(const Shape& shape, SignKey key, const float* in, float* coded, float* scratch) {
  const std::uint64_t pitch = shape.pitch();
  for (std::uint64_t here = shape.from; here < shape.to; ++here) {
    float* const to = coded + shape.place(here);
    const auto store = [=](std::size_t at, Floats x) {
      float* const run = to + at / kLineStride * pitch + at % kLineStride;
      parts_of(x, [=](std::size_t offset, Part part) { store_part<FAR>(run + offset, part); });
    };
    if (!transformed<N, FAR>(shape, key, shape.number(here), in, scratch, store)) return false;
  }
  if constexpr (FAR) fence();
  return true;
}

template <std::uint32_t N, bool FAR>
void decode_lines(const Shape& shape, SignKey key, const float* coded, const float* gains,
                  float* out, float* scratch) {
  const std::uint64_t pitch = shape.pitch();
  for (std::uint64_t here = shape.from; here < shape.to; ++here) {
    const float gain = gains[shape.group(here)];
    const std::uint64_t number = shape.number(here);
    if (gain == 0 || number >= shape.blocks) continue;
    const float* const from = coded + shape.place(here);
    const float* const next = from + (shape.member(here) + 1 < shape.members ? kLineStride : 0);
    const auto load = [=](std::size_t at) {
      return Floats::load_unaligned(from + at / kLineStride * pitch + at % kLineStride);
    };
    decode_block<FAR>(shape, Block<N>{key, number, N}, gain, out, scratch, load,
                      [=](std::size_t at) {
                        if constexpr (FAR) prefetch(next + at / kLineStride * pitch);
                      });
  }
  if constexpr (FAR) fence();
}

// -- choice of the loop

template <std::uint32_t N>
bool encode(const Shape& shape, SignKey key, const float* in, float* coded, float* scratch) {
  if (shape.stays()) return encode_in_order<N>(shape, key, in, coded, scratch);
  if constexpr (N == kUsualBlock) {
    const bool far = shape.count >= kFarFrom && aligned(coded);
    if (shape.stride == kLineStride) {
      return far ? encode_lines<N, true>(shape, key, in, coded, scratch)
                 : encode_lines<N, false>(shape, key, in, coded, scratch);
    }
    if (shape.stride == kLeastStride) {
      return far ? encode_eights<N, true>(shape, key, in, coded, scratch)
                 : encode_eights<N, false>(shape, key, in, coded, scratch);
    }
  }
  return encode_runs<N>(shape, key, in, coded, scratch);
}

template <std::uint32_t N>
void decode(const Shape& shape, SignKey key, const float* coded, const float* gains, float* out,
            float* scratch) {
  if (shape.stays()) return decode_in_order<N>(shape, key, coded, gains, out, scratch);
  if constexpr (N == kUsualBlock) {
    const bool far = shape.count >= kFarFrom;
    if (shape.stride == kLineStride) {
      return far ? decode_lines<N, true>(shape, key, coded, gains, out, scratch)
                 : decode_lines<N, false>(shape, key, coded, gains, out, scratch);
    }
    if (shape.stride == kLeastStride) {
      return far ? decode_eights<N, true>(shape, key, coded, gains, out, scratch)
                 : decode_eights<N, false>(shape, key, coded, gains, out, scratch);
    }
  }
  decode_runs<N>(shape, key, coded, gains, out, scratch);
}

}  // namespace

#define TARPON_JOIN_NOW(a, b) a##b
#define TARPON_JOIN(a, b) TARPON_JOIN_NOW(a, b)

bool TARPON_JOIN(encode_, TARPON_CODEC_SET)(const CodedLayout& layout, SignKey key,
                                            MemberRange members, const float* in, float* coded,
                                            float* scratch) {
  const Shape shape(layout, members);
  if (shape.n == kUsualBlock) return encode<kUsualBlock>(shape, key, in, coded, scratch);
  if (shape.n == kMostBlock) return encode<kMostBlock>(shape, key, in, coded, scratch);
  return encode<0>(shape, key, in, coded, scratch);
}

void TARPON_JOIN(decode_, TARPON_CODEC_SET)(const CodedLayout& layout, SignKey key,
                                            MemberRange members, const float* coded,
                                            const float* gains, float* out, float* scratch) {
  const Shape shape(layout, members);
  if (shape.n == kUsualBlock) return decode<kUsualBlock>(shape, key, coded, gains, out, scratch);
  if (shape.n == kMostBlock) return decode<kMostBlock>(shape, key, coded, gains, out, scratch);
  decode<0>(shape, key, coded, gains, out, scratch);
}

}  // namespace tarpon::codec::kernels
