// Where the coefficients of a coded bucket lie: pure arithmetic.
//
// The bucket is cut into blocks of `block` elements, the last one padded with zeros. A coded bucket
// is a matrix of *rows*; a row is the unit of loss. Block b is member (b div groups) of group (b
// mod groups). A row holds `stride` consecutive coefficients of every member of one group:
//
//   coefficient c of block b   row      (c div stride) x groups + b mod groups
//                              column   (b div groups) x stride + c mod stride
//
// For example 100,000 elements for 3 ranks and slots of 1408 bytes: blocks of 4096, 25 of them in
// one group, a stride of 14, 293 rows of 350 elements. Coefficient 30 of block 7 lies in row 2 at
// 7 x 14 + 2 = 100. With three ranks row 2 is slot 0 of shard 2.
//
// So a lost row costs `stride` coefficients of each block of its group, and the blocks of a group
// are spread over the whole bucket. A run of lost rows, be it a burst or the tail that a bound cuts
// off, costs any two blocks the same number of rows, or one row more. Members without a block are
// zero, and so are coefficients >= block in the last row of a group.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>

namespace tarpon::codec {

/// Selects an operation's signs: a function of (seed, tag, operation), equal on all ranks.
struct SignKey {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
};

inline constexpr std::uint32_t kLeastBlock = 64;
inline constexpr std::uint32_t kUsualBlock = 4096;  // 16 KiB of floats: stays in any L1
inline constexpr std::uint32_t kMostBlock = 16384;
/// Buckets of at least this many elements may have the largest blocks: the zeros that pad the last
/// block are at most an eighth of the bucket.
inline constexpr std::uint64_t kLargeBlocksFrom = std::uint64_t{8} * kMostBlock;
/// Buckets of at least this many elements (2 MiB) have left the caches of a core by the time that
/// they are coded, since a call moves their bytes many times. One lost row hardly matters to them.
inline constexpr std::uint64_t kFarFrom = std::uint64_t{32} * kMostBlock;
/// One instruction copies eight floats. A smaller stride would spread losses more.
inline constexpr std::uint32_t kLeastStride = 8;
/// Such runs fill a cache line.
inline constexpr std::uint32_t kLineStride = 16;

struct CodedLayout {
  std::uint64_t count = 0;    // elements of the bucket
  std::uint32_t block = 0;    // elements of a block: a power of two
  std::uint32_t stride = 0;   // coefficients of one block in a row
  std::uint32_t groups = 0;   // groups of blocks
  std::uint32_t members = 0;  // blocks of a group, at most

  std::uint64_t blocks() const { return (count + block - 1) / block; }
  std::uint32_t row_elements() const { return members * stride; }
  std::uint32_t rows_of_group() const { return (block + stride - 1) / stride; }
  std::uint64_t rows() const { return std::uint64_t{rows_of_group()} * groups; }
  std::uint64_t coded_count() const { return rows() * row_elements(); }
  /// Elements from one row to the next in memory: rows begin at cache lines if the bucket does. The
  /// coefficients of a block lie one pitch apart, an odd number of lines. Otherwise they would
  /// share few sets of a cache.
  std::uint32_t row_pitch() const {
    const std::uint32_t lines = (row_elements() + kLineStride - 1) / kLineStride;
    return (members > 1 ? lines | 1 : lines) * kLineStride;
  }
  /// Elements of memory for a coded bucket.
  std::uint64_t room() const { return rows() * row_pitch(); }

  std::uint32_t group_of(std::uint64_t row) const {
    return static_cast<std::uint32_t>(row % groups);
  }
  /// Real coefficients of each block of the group in `row`: fewer than `stride` in the last ones.
  std::uint32_t coefficients_in(std::uint64_t row) const {
    const auto first = static_cast<std::uint32_t>(row / groups) * stride;
    return block - first < stride ? block - first : stride;
  }
  /// REQUIRES: of_block < blocks(), coefficient < block.
  std::uint64_t row_of(std::uint64_t of_block, std::uint32_t coefficient) const {
    return std::uint64_t{coefficient / stride} * groups + of_block % groups;
  }
  /// Where the coefficient lies in memory: an index into room() elements.
  std::uint64_t position(std::uint64_t of_block, std::uint32_t coefficient) const {
    return row_of(of_block, coefficient) * row_pitch() + of_block / groups * stride +
           coefficient % stride;
  }

  /// Member m of group g has number g x members + m.
  std::uint64_t all_members() const { return std::uint64_t{groups} * members; }

  bool operator==(const CodedLayout&) const = default;
};

/// Consecutive members of groups, by number: what one call of encode() or decode() works on. A
/// member's elements and coefficients are touched by no other member.
struct MemberRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// Returns a layout with rows of at most `most_row_elements`, which are at least three quarters
/// full unless one row holds the bucket. Rows are dealt out to `ways` receivers in turn: the number
/// of groups has no factor in common with `ways`, so that each receiver gets as much of every
/// block. Blocks have kUsualBlock elements; in buckets from kLargeBlocksFrom on and below kFarFrom,
/// kMostBlock; in buckets below kUsualBlock, the least power of two that holds the bucket. From
/// kFarFrom on the stride is 16 if rows are then still seven eighths full, or else 8 if they are
/// three quarters full.
/// REQUIRES: count >= 1, most_row_elements a multiple of kLeastStride, ways >= 1.
CodedLayout strided_layout(std::uint64_t count, std::uint32_t most_row_elements,
                           std::uint32_t ways);

/// Returns a layout that keeps coefficients where their block was: row b is block b.
/// REQUIRES: count >= 1, block a power of two from kLeastBlock to kMostBlock.
CodedLayout contiguous_layout(std::uint64_t count, std::uint32_t block);

}  // namespace tarpon::codec
