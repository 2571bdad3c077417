// Cuts a bucket into shards, one for each rank, and messages into slots.
//
// Everything here is a value or a pure function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/rank.h"

namespace tarpon {

/// Shards start at multiples of this many bytes, so that no slot of any payload size that is a
/// multiple of it tears an element or shares a cache line with another shard.
inline constexpr std::size_t kShardAlignment = 64;

/// Bytes, or elements, [first, first + count).
struct Range {
  std::uint64_t first = 0;
  std::uint64_t count = 0;

  std::uint64_t end() const { return first + count; }
  Range times(std::uint64_t factor) const { return {first * factor, count * factor}; }
  bool operator==(const Range&) const = default;
};

/// How a bucket of `count` elements is cut into `world` shards: each as long as the longest,
/// rounded up to kShardAlignment. So the last shards may be short or, for small counts, empty.
/// REQUIRES: world >= 1, element_bytes >= 1, count * element_bytes < 2^62.
struct ShardLayout {
  std::uint64_t count = 0;
  std::size_t element_bytes = 1;
  std::uint32_t world = 1;

  /// The smallest number of elements that fills whole units of kShardAlignment.
  std::uint64_t unit_elements() const;
  /// Elements of a full shard.
  std::uint64_t shard_elements() const;
  /// Elements of shard `shard` < world; its first element never lies beyond `count`.
  Range elements(std::uint32_t shard) const;
};

/// The rank that owns `shard` in operation `operation`, and the shard that `rank` owns in it.
Rank owner_of(std::uint32_t shard, std::uint32_t operation, std::uint32_t world);
std::uint32_t shard_of(Rank rank, std::uint32_t operation, std::uint32_t world);

/// Slots of a message of `bytes`: slot i starts at i * slot_bytes, and the last one may be short.
/// REQUIRES: slot_bytes >= 1, and the result fits 32 bits.
std::uint32_t slots(std::uint64_t bytes, std::uint32_t slot_bytes);

/// Bytes of slot `slot` < slots(bytes, slot_bytes).
std::uint32_t slot_length(std::uint64_t bytes, std::uint32_t slot_bytes, std::uint32_t slot);

}  // namespace tarpon
