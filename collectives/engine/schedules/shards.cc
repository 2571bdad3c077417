#include "collectives/engine/schedules/shards.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace tarpon {

std::uint64_t ShardLayout::unit_elements() const {
  return kShardAlignment / std::gcd(kShardAlignment, element_bytes);
}

std::uint64_t ShardLayout::shard_elements() const {
  const std::uint64_t unit = unit_elements();
  const std::uint64_t share = count / world + (count % world != 0 ? 1 : 0);
  return (share + unit - 1) / unit * unit;
}

Range ShardLayout::elements(std::uint32_t shard) const {
  assert(shard < world);
  const std::uint64_t length = shard_elements();
  const std::uint64_t first = std::min(shard * length, count);
  return {first, std::min(length, count - first)};
}

Rank owner_of(std::uint32_t shard, std::uint32_t operation, std::uint32_t world) {
  return static_cast<Rank>((shard + operation % world) % world);
}

std::uint32_t shard_of(Rank rank, std::uint32_t operation, std::uint32_t world) {
  return (rank + world - operation % world) % world;
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
