#include "collectives/engine/schedules/tar_schedule.h"

#include <cassert>

namespace tarpon {
namespace {

/// `shard_bytes(owner)`: the bytes of the shard that `owner` owns.
template <typename ShardBytes>
TarSchedule schedule_of(std::uint32_t world, Rank rank, ShardBytes shard_bytes) {
  assert(rank < world);
  const auto transfer = [](Rank peer, Range range) {
    return TarSchedule::Transfer{peer, range.first, range.count};
  };

  TarSchedule schedule;
  schedule.own = shard_bytes(rank);
  schedule.stages.resize(2);
  TarSchedule::Stage& scatter = schedule.stages[kScatter];
  TarSchedule::Stage& gather = schedule.stages[kGather];
  for (std::uint32_t distance = 1; distance < world; ++distance) {
    const auto to = static_cast<Rank>((rank + world - distance) % world);
    const auto from = static_cast<Rank>((rank + distance) % world);
    scatter.sends.push_back(transfer(to, shard_bytes(to)));
    scatter.receives.push_back(transfer(from, schedule.own));
    gather.sends.push_back(transfer(to, schedule.own));
    gather.receives.push_back(transfer(from, shard_bytes(from)));
  }
  return schedule;
}

}  // namespace

TarSchedule tar_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                         std::uint64_t count, std::size_t element_bytes) {
  const ShardLayout layout{count, element_bytes, world};
  return schedule_of(world, rank,
                     [&](Rank owner) { return layout.bytes(shard_of(owner, operation, world)); });
}

TarSchedule striped_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                             std::uint64_t rows, std::uint32_t row_bytes, std::uint32_t row_pitch) {
  return schedule_of(world, rank, [&](Rank owner) {
    const std::uint32_t shard = shard_of(owner, operation, world);
    const std::uint64_t own = rows > shard ? (rows - shard - 1) / world + 1 : 0;
    return Range{std::uint64_t{shard} * row_pitch, own * row_bytes};
  });
}

}  // namespace tarpon
