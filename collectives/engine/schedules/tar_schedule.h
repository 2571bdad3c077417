// Transpose AllReduce (TAR) of calls that may run bounded: what a rank sends when, made from
// (world, rank, operation, count) alone.
//
// The bucket is cut into one shard per rank. Stage 0 (scatter) sends each shard to its owner, which
// reduces it; stage 1 (gather) sends the reduced shard to all. Ownership rotates with the operation
// number, so that a bad rank does not always hurt the same elements.
//
// Everything here is a value or a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/engine/schedules/shards.h"
#include "transport/rank.h"

namespace tarpon {

/// Stages of a TAR schedule.
inline constexpr std::size_t kScatter = 0;
inline constexpr std::size_t kGather = 1;

struct TarSchedule {
  /// One message. It has the same place in the buckets of both ranks. Its bytes are one range;
  /// those of striped_schedule() are rows, and the first one is at `first_byte`.
  struct Transfer {
    Rank peer = 0;
    std::uint64_t first_byte = 0;
    std::uint64_t bytes = 0;  // 0: there is nothing to send, and none to wait for
    bool operator==(const Transfer&) const = default;
  };
  /// Every peer is listed once in each direction.
  struct Stage {
    std::vector<Transfer> sends;  // in the order in which to send
    std::vector<Transfer> receives;
  };

  std::vector<Stage> stages;
  Range own;  // bytes of the shard that this rank owns
};

/// TAR as seen by `rank`. Rank i sends to i-1 first, then i-2, ... (mod world), so that each owner
/// hears its successor first and its predecessor last, as `stages[kScatter].receives` lists them.
///
/// Stage kScatter: a send carries the peer's shard of my input; every receive covers `own`.
/// Stage kGather: every send carries `own`, reduced; a receive is the peer's reduced shard.
/// REQUIRES: rank < world, and those of ShardLayout.
TarSchedule tar_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                         std::uint64_t count, std::size_t element_bytes);

/// The same for a bucket of `rows` rows of `row_bytes`, `row_pitch` bytes apart, dealt out to the
/// shards in turn: shard s has rows s, s + world, ... So a transfer's bytes lie a row at a time,
/// the first one at `first_byte` and each next one `world` rows further. Rows are slots.
TarSchedule striped_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                             std::uint64_t rows, std::uint32_t row_bytes, std::uint32_t row_pitch);

}  // namespace tarpon
