// Signs, and which copy of the transform this processor runs.
#include "codec/hadamard.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <memory>
#include <vector>

#include "codec/kernels/kernel_sets.h"
#include "codec/kernels/signs.h"

namespace tarpon::codec {
namespace {

// In rising order of width: a processor that runs one of them runs all before it.
constexpr std::array kSets {
#if defined(__aarch64__)
  CodecKernels{"neon", kernels::encode_neon, kernels::decode_neon},
#else
  CodecKernels{"sse2", kernels::encode_sse2, kernels::decode_sse2},
#if defined(TARPON_WIDE_CODEC)
      CodecKernels{"avx2", kernels::encode_avx2, kernels::decode_avx2},
      CodecKernels{"avx512", kernels::encode_avx512, kernels::decode_avx512},
#endif
#endif
};

std::size_t runnable_sets() {
#if !defined(TARPON_WIDE_CODEC)
  return 1;
#else
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
  return __builtin_cpu_supports("avx512f") ? 3 : 2;
#endif
}

/// SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

/// Returns this thread's scratch, aligned to a cache line. The thread's next call reuses it.
float* scratch_for(const CodedLayout& layout) {
  thread_local std::vector<float> room;
  room.resize(std::max<std::size_t>(room.size(), kernels::scratch_floats(layout.block) + 16));
  void* data = room.data();
  std::size_t bytes = room.size() * sizeof(float);
  return static_cast<float*>(std::align(64, 1, data, bytes));
}

}  // namespace

SignKey sign_key(std::uint64_t seed, std::uint32_t tag, std::uint32_t operation) {
  const std::uint64_t key = mixed(mixed(seed) ^ (std::uint64_t{tag} << 32 | operation));
  return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

bool negative(SignKey key, std::uint64_t block, std::uint32_t block_elements,
              std::uint32_t element) {
  const std::uint32_t words = kernels::sign_words(block_elements);
  const std::uint32_t word = kernels::sign_word(key, block, block_elements, element % words);
  return word >> (31 - element / words) & 1;
}

std::span<const CodecKernels> codec_kernels() {
  return std::span(kSets).first(runnable_sets());
}

bool encode(const CodedLayout& layout, SignKey key, std::span<const float> in,
            std::span<float> coded, const CodecKernels& kernels) {
  return encode(layout, key, {0, layout.all_members()}, in, coded, kernels);
}

bool encode(const CodedLayout& layout, SignKey key, MemberRange members, std::span<const float> in,
            std::span<float> coded, const CodecKernels& kernels) {
  assert(in.size() == layout.count && coded.size() == layout.room());
  assert(members.first + members.count <= layout.all_members());
  return kernels.encode(layout, key, members, in.data(), coded.data(), scratch_for(layout));
}

void decode(const CodedLayout& layout, SignKey key, std::span<const float> coded,
            std::span<const float> gains, std::span<float> out, const CodecKernels& kernels) {
  decode(layout, key, {0, layout.all_members()}, coded, gains, out, kernels);
}

void decode(const CodedLayout& layout, SignKey key, MemberRange members,
            std::span<const float> coded, std::span<const float> gains, std::span<float> out,
            const CodecKernels& kernels) {
  assert(out.size() == layout.count && coded.size() == layout.room());
  assert(gains.size() == layout.groups);
  assert(members.first + members.count <= layout.all_members());
  kernels.decode(layout, key, members, coded.data(), gains.data(), out.data(), scratch_for(layout));
}

}  // namespace tarpon::codec
