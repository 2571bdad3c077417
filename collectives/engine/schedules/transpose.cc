// Transpose AllReduce of an exact call. tar_schedule.h has its messages for bounded calls.
#include <algorithm>
#include <array>
#include <vector>

#include "collectives/engine/schedules/schedule.h"

namespace tarpon {
namespace {

/// The elements of each shard, by shard.
std::vector<Range> shard_ranges(const ShardLayout& layout, std::uint32_t operation,
                                const Shares& shares) {
  std::vector<Range> result(layout.world);
  if (shares.even()) {
    for (std::uint32_t shard = 0; shard < layout.world; ++shard)
      result[shard] = layout.elements(shard);
    return result;
  }
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

Schedule transpose_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                            std::uint64_t count, std::size_t element_bytes, const Shares& shares) {
  using Pieces = std::array<Schedule::Piece, 1>;
  const std::vector<Range> ranges = shard_ranges({count, element_bytes, world}, operation, shares);
  const std::uint32_t own = shard_of(rank, operation, world);
  Schedule schedule;
  schedule.chunks.reserve(world);
  schedule.pieces.reserve(std::size_t{4} * (world - 1));
  for (std::uint32_t shard = 0; shard < world; ++shard) {
    schedule.chunks.push_back({.elements = ranges[shard],
                               .additions = shard == own ? world - 1 : 0,
                               .stored = shard != own});
  }
  schedule.stages.resize(2);
  Schedule::Stage& scatter = schedule.stages[0];
  Schedule::Stage& gather = schedule.stages[1];
  gather.confirmed = true;
  gather.alike = true;
  for (Schedule::Stage& stage : schedule.stages) {
    stage.sends.reserve(world - 1);
    stage.receives.reserve(world - 1);
  }
  for (std::uint32_t distance = 1; distance < world; ++distance) {
    const auto to = static_cast<Rank>((rank + world - distance) % world);
    const auto from = static_cast<Rank>((rank + distance) % world);
    const std::uint32_t theirs = shard_of(to, operation, world);
    const std::uint32_t result = shard_of(from, operation, world);
    schedule.add(scatter.sends, to, Pieces{{{.chunk = theirs, .version = 0}}});
    schedule.add(scatter.receives, from, Pieces{{{.chunk = own, .version = distance}}});
    schedule.add(gather.sends, to, Pieces{{{.chunk = own, .version = world - 1}}});
    schedule.add(gather.receives, from, Pieces{{{.chunk = result, .version = 1}}});
  }
  return schedule;
}

}  // namespace tarpon
