// The randomized Hadamard transform of a bucket, block by block, into rows and back.
//
// A block x of n elements becomes y = H D x / sqrt(n): D are random signs, H is the Hadamard matrix
// in Sylvester's order. The transform is orthonormal and linear: coded buckets are added without
// decoding, and losing a share p of a block's coefficients, with what is left scaled by 1 / (1 -
// p), costs a squared error of p / (1 - p) of the block's own, spread evenly over its elements and,
// over the signs, without bias. As in OptiReduce (NSDI'25), but in blocks, so that it stays in the
// first cache, and with signs of each operation's own.
//
// Signs come from a counter: nothing is stored, all ranks have the same. All instruction sets give
// the same bits: butterflies run from the longest distance to the shortest, on every one.
//
// Denormals are computed, not flushed (unless the calling thread has set its processor to); a
// coefficient that rounds to one loses as much as any sum that does. NaN and infinity never leave a
// transform: each coefficient is a sum of all elements of its block, so that one look at a block
// finds them.
//
// Pure functions, thread-safe; a thread's calls share scratch of at most 130 KiB.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "codec/layout.h"

namespace tarpon::codec {

/// Up to this size of elements no coefficient overflows, nor their sum over 64 ranks. Beyond it a
/// whole block may become infinite or NaN where a plain sum would be finite.
inline constexpr float kLargest = 0x1p104f;

/// The signs of an operation.
SignKey sign_key(std::uint64_t seed, std::uint32_t tag, std::uint32_t operation);

/// Whether element `element` of block `block` changes its sign: the definition, one at a time.
bool negative(SignKey key, std::uint64_t block, std::uint32_t block_elements,
              std::uint32_t element);

/// One compiled copy of the transform.
struct CodecKernels {
  std::string_view instruction_set;  // "sse2", "avx2", "avx512"; "neon"
  bool (*encode)(const CodedLayout&, SignKey, MemberRange, const float* in, float* coded,
                 float* scratch);
  void (*decode)(const CodedLayout&, SignKey, MemberRange, const float* coded, const float* gains,
                 float* out, float* scratch);
};

/// The copies that this processor can run, the narrowest first.
std::span<const CodecKernels> codec_kernels();

/// Codes `in` (layout.count elements) into all rows of `coded` (layout.room()). Neither needs to be
/// aligned, but large buckets take half as long where `coded` and, for decode(), `out` begin at a
/// cache line. They may be the same memory where the layout is contiguous, and must not overlap
/// otherwise. False when an element is NaN or infinite: `coded` is undefined then.
bool encode(const CodedLayout& layout, SignKey key, std::span<const float> in,
            std::span<float> coded, const CodecKernels& kernels = codec_kernels().back());

/// The same for some members, which fill their own parts of the rows: ranges that cover all
/// members, in any order, give what one call gives. Spans are those of the whole bucket.
bool encode(const CodedLayout& layout, SignKey key, MemberRange members, std::span<const float> in,
            std::span<float> coded, const CodecKernels& kernels = codec_kernels().back());

/// The inverse. `gains`: one for each group, by which its elements are multiplied: block over the
/// coefficients that came of each of its blocks; 0: `out` is left as it is there.
/// REQUIRES: rows that did not come are zero.
void decode(const CodedLayout& layout, SignKey key, std::span<const float> coded,
            std::span<const float> gains, std::span<float> out,
            const CodecKernels& kernels = codec_kernels().back());

/// The same for some members, whose elements alone are written. Spans are those of the whole
/// bucket.
void decode(const CodedLayout& layout, SignKey key, MemberRange members,
            std::span<const float> coded, std::span<const float> gains, std::span<float> out,
            const CodecKernels& kernels = codec_kernels().back());

}  // namespace tarpon::codec
