// What an AllReduce sends when: pure data, made from (world, rank, operation, count) alone.
//
// Transpose AllReduce (TAR): the bucket is cut into one shard per rank. Stage 0 (scatter) sends
// each shard to its owner, who reduces; stage 1 (gather) sends the reduced shard to all. Ownership
// rotates with the operation number, so that a bad rank does not always hurt the same elements.
//
// An executor runs a Schedule on an endpoint. Everything here is a value or a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/port.h"

namespace tarpon {

/// Shards start at multiples of this many bytes, so that no slot of any payload size that is a
/// multiple of it tears an element or shares a cache line with another shard.
inline constexpr std::size_t kShardAlignment = 64;

/// Bytes, or elements, [first, first + count).
struct Range {
  std::uint64_t first = 0;
  std::uint64_t count = 0;

  std::uint64_t end() const { return first + count; }
  bool operator==(const Range&) const = default;
};

/// How a bucket of `count` elements is cut into `world` shards: each as long as the longest,
/// rounded up to kShardAlignment. So the last shards may be short or, for small counts, empty.
/// REQUIRES: world >= 1, element_bytes >= 1, count * element_bytes < 2^62.
struct ShardLayout {
  std::uint64_t count = 0;
  std::size_t element_bytes = 1;
  std::uint32_t world = 1;

  /// Elements of a full shard.
  std::uint64_t shard_elements() const;
  /// Elements, and bytes, of shard `shard` < world; its first element never lies beyond `count`.
  Range elements(std::uint32_t shard) const;
  Range bytes(std::uint32_t shard) const;
};

/// The rank that owns `shard` in operation `operation`, and the shard that `rank` owns in it.
Rank owner_of(std::uint32_t shard, std::uint32_t operation, std::uint32_t world);
std::uint32_t shard_of(Rank rank, std::uint32_t operation, std::uint32_t world);

/// Stages of a TAR schedule.
inline constexpr std::size_t kScatter = 0;
inline constexpr std::size_t kGather = 1;

struct Schedule {
  /// One message. The range lies in the bucket, at both ends.
  struct Transfer {
    Rank peer = 0;
    std::uint64_t first_byte = 0;
    std::uint64_t bytes = 0;  // 0: there is nothing to send, and none to wait for
    bool operator==(const Transfer&) const = default;
  };
  /// Every peer is listed once in each direction.
  struct Stage {
    std::vector<Transfer> sends;  // in the order in which to send
    std::vector<Transfer>
        receives;  // the position is the peer's turn in the fixed order of addition
  };

  std::vector<Stage> stages;
  Range own;  // bytes of the shard that this rank owns
};

/// TAR as seen by `rank`. Rank i sends to i-1 first, then i-2, ... (mod world), so that each owner
/// hears its successor first and its predecessor last: the fixed order of addition is the owner's
/// own contribution, then `stages[kScatter].receives` from front to back.
///
/// Stage kScatter: a send carries the peer's shard of my input; every receive covers `own`.
/// Stage kGather: every send carries `own`, reduced; a receive is the peer's reduced shard.
/// REQUIRES: rank < world, and those of ShardLayout.
Schedule tar_schedule(std::uint32_t world, Rank rank, std::uint32_t operation, std::uint64_t count,
                      std::size_t element_bytes);

/// The same for a bucket of `rows` rows of `row_bytes`, `row_pitch` bytes apart, dealt out to the
/// shards in turn: shard s has rows s, s + world, ... So a transfer's bytes lie a row at a time,
/// the first one at `first_byte` and each next one `world` rows further. Rows are slots.
Schedule striped_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                          std::uint64_t rows, std::uint32_t row_bytes, std::uint32_t row_pitch);

/// Slots of a message of `bytes`: slot i starts at i * slot_bytes, and the last one may be short.
/// REQUIRES: slot_bytes >= 1, and the result fits 32 bits.
std::uint32_t slots(std::uint64_t bytes, std::uint32_t slot_bytes);

/// Bytes of slot `slot` < slots(bytes, slot_bytes).
std::uint32_t slot_length(std::uint64_t bytes, std::uint32_t slot_bytes, std::uint32_t slot);

}  // namespace tarpon
