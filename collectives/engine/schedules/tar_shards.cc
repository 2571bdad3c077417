#include "collectives/engine/schedules/tar_shards.h"

#include <algorithm>
#include <cassert>

namespace tarpon {
namespace {

/// `range_of(shard)`: of the bucket.
template <typename RangeOf>
TarShards by_turns(std::uint32_t world, Rank rank, std::uint32_t operation, RangeOf range_of) {
  assert(rank < world);
  TarShards shards;
  shards.own = range_of(shard_of(rank, operation, world));
  shards.others.reserve(world - 1);
  for (std::uint32_t distance = 1; distance < world; ++distance) {
    const auto owner = static_cast<Rank>((rank + distance) % world);
    shards.others.push_back({owner, range_of(shard_of(owner, operation, world))});
  }
  return shards;
}

/// The elements of each shard.
std::vector<Range> uneven_ranges(const ShardLayout& layout, std::uint32_t operation,
                                 const Shares& shares) {
  std::vector<Range> result(layout.world);
  const std::uint64_t unit = layout.unit_elements();
  const auto owned = shares.divide((layout.count + unit - 1) / unit);
  std::uint64_t next = 0;
  for (std::uint32_t shard = 0; shard < layout.world; ++shard) {
    const std::uint64_t length = owned[owner_of(shard, operation, layout.world)] * unit;
    result[shard] = {next, std::min(length, layout.count - next)};
    next += result[shard].count;
  }
  return result;
}

}  // namespace

TarShards tar_shards(std::uint32_t world, Rank rank, std::uint32_t operation, std::uint64_t count,
                     std::size_t element_bytes, const Shares& shares) {
  const ShardLayout layout{count, element_bytes, world};
  if (shares.even()) {
    return by_turns(world, rank, operation,
                    [&](std::uint32_t shard) { return layout.elements(shard); });
  }
  const std::vector<Range> ranges = uneven_ranges(layout, operation, shares);
  return by_turns(world, rank, operation, [&](std::uint32_t shard) { return ranges[shard]; });
}

TarShards striped_shards(std::uint32_t world, Rank rank, std::uint32_t operation,
                         std::uint64_t rows, std::uint32_t row_bytes, std::uint32_t row_pitch) {
  return by_turns(world, rank, operation, [&](std::uint32_t shard) {
    const std::uint64_t own = rows > shard ? (rows - shard - 1) / world + 1 : 0;
    return Range{std::uint64_t{shard} * row_pitch, own * row_bytes};
  });
}

}  // namespace tarpon
