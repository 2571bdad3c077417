// The randomized Hadamard transform of a bucket, block by block, into rows and back.
//
// A block x of n elements becomes y = H D x / sqrt(n): D is a diagonal matrix of random signs, H is
// the Hadamard matrix in Sylvester's order. The transform is orthonormal and linear, so coded
// buckets are added without decoding. If a share p of a block's coefficients is lost and the rest
// is scaled by 1 / (1 - p), the squared error is p / (1 - p) times the block's squared norm. It is
// spread evenly over the block's elements and, over the signs, without bias. The method is that of
// OptiReduce (NSDI'25), but it works in blocks, which stay in the first cache, and each operation
// has its own signs.
//
// Signs come from a counter: nothing is stored, and all ranks have the same signs. All instruction
// sets give the same bits: each one runs butterflies from the longest distance to the shortest.
//
// Denormals are computed, not flushed, unless the calling thread has set its processor to flush
// them. A coefficient that rounds to a denormal loses as much as any sum that does. NaN and
// infinity survive a transform, because each coefficient is a sum of all elements of its block. So
// one check per block finds them.
//
// Pure functions, thread-safe; a thread's calls share scratch of at most 130 KiB.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "codec/layout.h"

namespace tarpon::codec {

/// If no element exceeds this magnitude, no coefficient overflows, nor does its sum over 64 ranks.
/// Beyond it a whole block may become infinite or NaN where a plain sum would be finite.
inline constexpr float kLargest = 0x1p104f;

/// Returns the key to the signs of an operation.
SignKey sign_key(std::uint64_t seed, std::uint32_t tag, std::uint32_t operation);

/// Whether element `element` of block `block` changes its sign: the definition of all signs.
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

/// Returns the copies that this processor can run, the narrowest first.
std::span<const CodecKernels> codec_kernels();

/// Codes `in` (layout.count elements) into all rows of `coded` (layout.room()). Neither needs to be
/// aligned, but large buckets take half as long where `coded` and, for decode(), `out` begin at a
/// cache line. They may be the same memory where the layout is contiguous, and must not overlap
/// otherwise. Returns false when an element is NaN or infinite: `coded` is undefined then.
bool encode(const CodedLayout& layout, SignKey key, std::span<const float> in,
            std::span<float> coded, const CodecKernels& kernels = codec_kernels().back());

/// The same for some members, which fill their own parts of the rows: ranges that cover all
/// members, in any order, give what one call gives. Spans are those of the whole bucket.
bool encode(const CodedLayout& layout, SignKey key, MemberRange members, std::span<const float> in,
            std::span<float> coded, const CodecKernels& kernels = codec_kernels().back());

/// Decodes `coded` into `out`: the inverse of encode(). `gains` has one factor for each group,
/// which multiplies the group's elements: the size of a block divided by the number of coefficients
/// received of each block. A gain of 0 leaves the group's elements in `out` as they are.
/// REQUIRES: rows that were not received are zero.
void decode(const CodedLayout& layout, SignKey key, std::span<const float> coded,
            std::span<const float> gains, std::span<float> out,
            const CodecKernels& kernels = codec_kernels().back());

/// The same for some members: writes only their elements. Spans are those of the whole bucket.
void decode(const CodedLayout& layout, SignKey key, MemberRange members,
            std::span<const float> coded, std::span<const float> gains, std::span<float> out,
            const CodecKernels& kernels = codec_kernels().back());

}  // namespace tarpon::codec
