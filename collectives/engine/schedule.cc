// Shards, ownership and the TAR schedule.
#include "collectives/engine/schedule.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace tarpon {

std::uint64_t ShardLayout::shard_elements() const {
  // The smallest number of elements that fills whole alignment units, for any element size.
  const std::uint64_t unit = kShardAlignment / std::gcd(kShardAlignment, element_bytes);
  const std::uint64_t share = count / world + (count % world != 0 ? 1 : 0);
  return (share + unit - 1) / unit * unit;
}

Range ShardLayout::elements(std::uint32_t shard) const {
  assert(shard < world);
  const std::uint64_t length = shard_elements();
  const std::uint64_t first = std::min(shard * length, count);
  return {first, std::min(length, count - first)};
}

Range ShardLayout::bytes(std::uint32_t shard) const {
  const Range range = elements(shard);
  return {range.first * element_bytes, range.count * element_bytes};
}

Rank owner_of(std::uint32_t shard, std::uint32_t operation, std::uint32_t world) {
  return static_cast<Rank>((shard + operation % world) % world);
}

std::uint32_t shard_of(Rank rank, std::uint32_t operation, std::uint32_t world) {
  return (rank + world - operation % world) % world;
}

namespace {

/// `shard_bytes(owner)`: of the shard that it owns.
template <typename ShardBytes>
Schedule schedule_of(std::uint32_t world, Rank rank, ShardBytes shard_bytes) {
  assert(rank < world);
  const auto transfer = [](Rank peer, Range range) {
    return Schedule::Transfer{peer, range.first, range.count};
  };

  Schedule schedule;
  schedule.own = shard_bytes(rank);
  schedule.stages.resize(2);
  Schedule::Stage& scatter = schedule.stages[kScatter];
  Schedule::Stage& gather = schedule.stages[kGather];
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

Schedule tar_schedule(std::uint32_t world, Rank rank, std::uint32_t operation, std::uint64_t count,
                      std::size_t element_bytes) {
  const ShardLayout layout{count, element_bytes, world};
  return schedule_of(world, rank,
                     [&](Rank owner) { return layout.bytes(shard_of(owner, operation, world)); });
}

Schedule striped_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                          std::uint64_t rows, std::uint32_t row_bytes, std::uint32_t row_pitch) {
  return schedule_of(world, rank, [&](Rank owner) {
    const std::uint32_t shard = shard_of(owner, operation, world);
    const std::uint64_t own = rows > shard ? (rows - shard - 1) / world + 1 : 0;
    return Range{std::uint64_t{shard} * row_pitch, own * row_bytes};
  });
}

std::uint32_t slots(std::uint64_t bytes, std::uint32_t slot_bytes) {
  const std::uint64_t number = bytes / slot_bytes + (bytes % slot_bytes != 0 ? 1 : 0);
  assert(number <= UINT32_MAX);
  return static_cast<std::uint32_t>(number);
}

std::uint32_t slot_length(std::uint64_t bytes, std::uint32_t slot_bytes, std::uint32_t slot) {
  const std::uint64_t first = std::uint64_t{slot} * slot_bytes;
  assert(first < bytes);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(slot_bytes, bytes - first));
}

}  // namespace tarpon
