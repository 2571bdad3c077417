// How a bucket is cut into blocks, groups and rows.
#include "codec/layout.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>

namespace tarpon::codec {
namespace {

std::uint64_t divided_up(std::uint64_t value, std::uint64_t by) {
  return (value + by - 1) / by;
}

/// Returns the size of blocks. A lost row costs a few coefficients of each of its blocks. Where
/// there are few rows, a row of larger blocks holds more coefficients of each, so that they are a
/// fair sample of the block.
std::uint32_t block_of(std::uint64_t count) {
  if (count < kUsualBlock) {
    return std::max(kLeastBlock, std::bit_ceil(static_cast<std::uint32_t>(count)));
  }
  return count >= kLargeBlocksFrom && count < kFarFrom ? kMostBlock : kUsualBlock;
}

}  // namespace

CodedLayout strided_layout(std::uint64_t count, std::uint32_t most_row_elements,
                           std::uint32_t ways) {
  assert(count >= 1 && ways >= 1);
  assert(most_row_elements >= kLeastStride && most_row_elements % kLeastStride == 0);
  const auto with_runs_of = [=](std::uint32_t stride) {
    CodedLayout layout{.count = count, .block = block_of(count), .stride = stride};
    const std::uint64_t blocks = layout.blocks();
    layout.groups = static_cast<std::uint32_t>(divided_up(blocks * stride, most_row_elements));
    while (std::gcd(layout.groups, ways) != 1) ++layout.groups;
    layout.members = static_cast<std::uint32_t>(divided_up(blocks, layout.groups));
    return layout;
  };
  const auto row_is_full = [=](const CodedLayout& layout, std::uint64_t parts, std::uint64_t of) {
    return of * layout.row_elements() >= parts * most_row_elements;
  };
  CodedLayout layout = with_runs_of(kLeastStride);
  // Runs of 16 and of 8 are coded twice as fast as others.
  if (count >= kFarFrom) {
    if (most_row_elements >= kLineStride) {
      const CodedLayout lines = with_runs_of(kLineStride);
      if (row_is_full(lines, 7, 8)) return lines;
    }
    if (row_is_full(layout, 3, 4)) return layout;
  }
  layout.stride = std::min(most_row_elements / layout.members, layout.block);
  return layout;
}

CodedLayout contiguous_layout(std::uint64_t count, std::uint32_t block) {
  assert(count >= 1 && std::has_single_bit(block));
  assert(block >= kLeastBlock && block <= kMostBlock);
  return {.count = count,
          .block = block,
          .stride = block,
          .groups = static_cast<std::uint32_t>(divided_up(count, block)),
          .members = 1};
}

}  // namespace tarpon::codec
