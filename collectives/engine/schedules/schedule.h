// What one rank sends, adds up and stores in an exact AllReduce: pure data, made from the call's
// arguments, world, rank and operation alone. ScheduledCall runs it.
//
// The bucket is cut into chunks. At each rank a chunk goes through versions. Version 0 is the
// rank's own contribution. Each addition of data from another rank makes the next version. If
// another rank makes the result of a chunk, the rank stores it as the last version. Every rank ends
// with the result of every chunk.
//
// A message is a list of pieces. A piece carries one version of a chunk of its sender, and makes
// one at its receiver. Pieces may be sent again at any time, until their receivers have them.
//
// Each algorithm has a file that makes its schedules. tests/collectives/engine/schedules checks
// each of them for 2 to 64 ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/schedules/shards.h"
#include "collectives/types.h"
#include "transport/rank.h"

namespace tarpon {

struct Schedule {
  struct Chunk {
    Range elements;               // of the bucket; none where it is short
    std::uint32_t additions = 0;  // number of versions that additions make
    /// The rank adds its own contribution after this many additions; 0: it begins with that. If it
    /// is above 0, the first addition takes the place of the rank's own contribution, and only
    /// version 0 is sent.
    std::uint32_t own_turn = 0;
    bool stored = false;  // the result is made elsewhere; else the last addition makes it
    /// In place another chunk's result takes the memory of the rank's own contribution, which may
    /// still have to be sent: that is copied.
    bool overwritten = false;

    std::uint32_t last_version() const { return additions + (stored ? 1 : 0); }
  };

  struct Piece {
    std::uint32_t chunk = 0;
    std::uint32_t version = 0;  // sent: which one; received: which one it makes
    /// A sum of several contributions, not all. If such sums are not elements (needs_partials()),
    /// the piece is sent as partial results.
    bool partial = false;
    bool left = false;  // received: it is the left operand of its addition, else the right one
    std::uint32_t round = 0;  // in a stage with rounds
    bool operator==(const Piece&) const = default;
  };

  /// Has at least one piece, and only pieces of chunks with elements.
  struct Message {
    Rank peer = 0;
    std::uint32_t first_piece = 0;  // in `pieces`
    std::uint32_t piece_count = 0;
  };

  /// At most one message to, and one from, each peer.
  struct Stage {
    std::vector<Message> sends;  // in the order in which to send
    std::vector<Message> receives;
    /// A receiver may still lack a message of this stage when the call is complete here. So the
    /// call ends only when the receivers have confirmed the stage's messages, or it keeps copies of
    /// them.
    bool confirmed = false;
    bool alike = false;  // the messages that a rank sends are one and the same piece
    /// Its pieces have rounds, which rise within a message. Ranks do not keep to them: a message
    /// goes out as soon as its pieces are there. `tarpon-sim scale` runs rounds one by one, as the
    /// algorithm was published.
    bool in_rounds = false;
  };

  std::vector<Chunk> chunks;
  std::vector<Stage> stages;  // 1 to 4
  std::vector<Piece> pieces;  // of all messages, one message after another

  std::span<const Piece> pieces_of(const Message& message) const {
    return {pieces.data() + message.first_piece, message.piece_count};
  }

  bool has_elements(std::uint32_t chunk) const { return chunks[chunk].elements.count > 0; }

  /// For the functions below. Adds a message to, or from, `peer`, with those pieces that have
  /// elements. Adds none if no piece has.
  void add(std::vector<Message>& messages, Rank peer, std::span<const Piece> of);
};

/// Transpose AllReduce (TAR): stage 0 sends each shard to its owner, which adds it up; stage 1
/// sends the owner's result to all: 2 (world - 1) messages a rank each way, 2 (world - 1) / world
/// of the bucket, two message delays. The owner adds its own contribution first, then those of its
/// successors in order: rank i sends to i - 1 first, then i - 2, ... (mod world). Which rank owns
/// which shard rotates with the operation. With `shares` a shard is as long as its owner's share of
/// the bucket, in units of kShardAlignment bytes, and a rank sends and receives
/// 1 + (world - 2) share of the bucket. REQUIRES: world >= 2, rank < world, those of ShardLayout,
/// and shares that are even, or valid and of `world` ranks.
Schedule transpose_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                            std::uint64_t count, std::size_t element_bytes,
                            const Shares& shares = {});

/// Circulant reduce-scatter, then allgather (Traff): 2 ceil(log2 world) messages a rank each way,
/// 2 (world - 1) / world of the bucket, for any world. Stage 0: round k halves the chunks that a
/// rank still adds up for others. Stage 1: the same rounds backwards. Which rank ends up with which
/// chunk rotates with the operation. REQUIRES: world >= 2, rank < world, those of ShardLayout.
Schedule circulant_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                            std::uint64_t count, std::size_t element_bytes);

/// Every rank sends its whole bucket to every other one, and adds them all up itself, in the order
/// of ranks: one message delay, world - 1 times the bucket each way. For small buckets.
/// REQUIRES: world >= 2, rank < world.
Schedule one_shot_schedule(std::uint32_t world, Rank rank, std::uint64_t count);

/// Every chunk goes round the ring once and adds up, then its result goes round: 2 messages a rank
/// each way, 2 (world - 1) / world of the bucket, 2 (world - 1) hops. Which rank ends up with which
/// chunk rotates with the operation. REQUIRES: world >= 2, rank < world, those of ShardLayout.
Schedule ring_schedule(std::uint32_t world, Rank rank, std::uint32_t operation, std::uint64_t count,
                       std::size_t element_bytes);

/// In round i ranks whose numbers differ in bit i exchange the whole bucket: log2 world rounds. If
/// the world is not a power of two, surplus ranks hand in their buckets before, and get the result
/// afterwards. REQUIRES: world >= 2, rank < world.
Schedule recursive_doubling_schedule(std::uint32_t world, Rank rank, std::uint64_t count);

/// TAR on two levels, in groups of `group_size` ranks. Stage 0: ranks of a group scatter. Stages 1
/// and 2: ranks of the same place in their groups scatter and gather their sums. Stage 3: ranks of
/// a group gather. 2 (group_size - 1) + 2 (world / group_size - 1) messages a rank each way, and
/// 2 (world - 1) / world of the bucket. In a stage a rank receives from at most
/// max(group_size, world / group_size) - 1 ranks. REQUIRES: world >= 2, rank < world, group_size
/// divides world, those of ShardLayout.
Schedule two_level_tar_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                                std::uint64_t count, std::size_t element_bytes,
                                std::uint32_t group_size);

/// Chunks of a late-rank schedule for each rank but the late one. More chunks shorten the last
/// rounds, in which links are idle. 4 if each chunk then has 64 KiB or more, else 1.
std::uint32_t late_rank_segments(std::uint32_t world, std::uint64_t bytes);

/// AllReduce with one late rank (StragglAR). Each other rank owns `segments` chunks. Stage 0: the
/// other ranks send their contributions to the owners, which add them up. Stage 1: each owner and
/// the late rank exchange their parts of the owner's chunks, and both have those results. Stage 2:
/// the results spread from rank to rank. From the late rank's arrival on, the call takes
/// chunks + log2(world) - 1 rounds of a chunk. Time to make a schedule: 4 us for 8 ranks in 7
/// chunks, 13 in 28; 0.5 ms for 64 ranks in 63 chunks, 1.6 in 252. REQUIRES: world is a power of
/// two >= 2, rank < world, late < world, segments >= 1, and what ShardLayout requires for
/// segments (world - 1) shards.
Schedule late_rank_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                            std::uint64_t count, std::size_t element_bytes, Rank late,
                            std::uint32_t segments);

/// Makes the schedule of the algorithm, count, type, groups, late rank and shares that an exact
/// call asks for.
Schedule schedule_of(const AllreduceArguments& call, std::uint32_t world, Rank rank,
                     std::uint32_t operation);

}  // namespace tarpon
