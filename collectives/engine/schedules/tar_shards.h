// The shards of a bucket as one rank meets them in Transpose AllReduce (TAR), made from (world,
// rank, operation, count) alone. Exact calls (schedule.h) and bounded ones (tar_call.h) start here.
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
#include "collectives/shares.h"
#include "transport/rank.h"

namespace tarpon {

/// Stages of TAR.
inline constexpr std::size_t kScatter = 0;
inline constexpr std::size_t kGather = 1;

struct TarShards {
  struct Shard {
    Rank owner = 0;
    Range range;  // count 0: there is nothing to send, and none to wait for
    bool operator==(const Shard&) const = default;
  };

  Range own;
  /// Those of all peers, in the order of their turns: rank i receives from i + 1 first, then from
  /// i + 2, ... (mod world). In both stages it sends in the reverse order, to i - 1 first: so each
  /// owner hears its successor first and its predecessor last.
  std::vector<Shard> others;
};

/// In elements. With `shares` a shard is as long as its owner's share of the bucket, in units of
/// kShardAlignment bytes. REQUIRES: rank < world, those of ShardLayout, and shares that are even,
/// or valid and of `world` ranks.
TarShards tar_shards(std::uint32_t world, Rank rank, std::uint32_t operation, std::uint64_t count,
                     std::size_t element_bytes, const Shares& shares = {});

/// In bytes of a bucket of `rows` rows of `row_bytes`, `row_pitch` bytes apart, dealt out to the
/// shards in turn: shard s has rows s, s + world, ... So the bytes of a shard lie a row at a time:
/// the first row at Range::first, and each next one `world` rows further. Range::count is the bytes
/// of its rows. Rows are slots.
TarShards striped_shards(std::uint32_t world, Rank rank, std::uint32_t operation,
                         std::uint64_t rows, std::uint32_t row_bytes, std::uint32_t row_pitch);

}  // namespace tarpon
