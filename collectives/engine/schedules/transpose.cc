// Transpose AllReduce of an exact call, by the shards of tar_shards.h.
#include <array>

#include "collectives/engine/schedules/schedule.h"
#include "collectives/engine/schedules/tar_shards.h"

namespace tarpon {

Schedule transpose_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                            std::uint64_t count, std::size_t element_bytes, const Shares& shares) {
  using Pieces = std::array<Schedule::Piece, 1>;
  const TarShards shards = tar_shards(world, rank, operation, count, element_bytes, shares);
  const std::uint32_t own = shard_of(rank, operation, world);
  Schedule schedule;
  schedule.chunks.resize(world);
  schedule.chunks[own] = {.elements = shards.own, .additions = world - 1};
  for (const TarShards::Shard& shard : shards.others) {
    schedule.chunks[shard_of(shard.owner, operation, world)] = {.elements = shard.range,
                                                                .stored = true};
  }
  schedule.pieces.reserve(std::size_t{4} * (world - 1));
  schedule.stages.resize(2);
  Schedule::Stage& scatter = schedule.stages[0];
  Schedule::Stage& gather = schedule.stages[1];
  gather.confirmed = true;
  gather.alike = true;
  for (Schedule::Stage& stage : schedule.stages) {
    stage.sends.reserve(world - 1);
    stage.receives.reserve(world - 1);
  }
  for (std::uint32_t turn = 1; turn < world; ++turn) {
    const Rank from = shards.others[turn - 1].owner;
    const Rank to = shards.others[world - 1 - turn].owner;
    const std::uint32_t theirs = shard_of(to, operation, world);
    const std::uint32_t result = shard_of(from, operation, world);
    schedule.add(scatter.sends, to, Pieces{{{.chunk = theirs, .version = 0}}});
    schedule.add(scatter.receives, from, Pieces{{{.chunk = own, .version = turn}}});
    schedule.add(gather.sends, to, Pieces{{{.chunk = own, .version = world - 1}}});
    schedule.add(gather.receives, from, Pieces{{{.chunk = result, .version = 1}}});
  }
  return schedule;
}

}  // namespace tarpon
