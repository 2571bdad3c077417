// How the parts of a collective beside AllReduce lie in its buffers, and its schedule.
//
// A schedule's chunks are ranges of one bucket; of all_to_all the input has one of its own
// (`sent`). The input of a rank is a part of the bucket or all of it, and so is its output.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/collective.h"
#include "collectives/engine/schedules/schedule.h"
#include "collectives/engine/schedules/shards.h"

namespace tarpon {

struct CollectiveParts {
  Collective collective = Collective::reduce_scatter;
  Rank root = 0;
  Rank receiver = 0;         // of a message, whose sender is the root
  std::vector<Range> parts;  // of each rank in the bucket, in elements; broadcast, reduce and
                             // messages: empty
  std::vector<Range> sent;   // all_to_all: the part for each rank in the bucket of the input
  std::uint64_t count = 0;   // elements of the bucket
  bool by_pair = false;      // all_to_all with counts: other ranks have other parts

  /// REQUIRES: arguments of rank `rank` that are not refused; a world >= 1.
  static CollectiveParts of(const CollectiveArguments& arguments, std::uint32_t world, Rank rank);

  /// A hash of the parts, of 48 bits; 0 where all have the same size. by_pair: 1.
  std::uint64_t hash() const;

  /// The elements of the bucket that the input and the output of `rank` have; none where the rank
  /// has no such buffer. all_to_all: the input's bucket is another one than the output's.
  Range input(Rank rank) const;
  Range output(Rank rank) const;

  /// The elements that `rank` copies from its input to its output: where they begin in the buckets
  /// of both, and how many there are.
  struct OwnCopy {
    std::uint64_t from = 0, to = 0, count = 0;
  };
  OwnCopy own_copy(Rank rank) const;
};

/// What `rank` sends, adds and stores. Each element of a part goes from its rank to the ranks that
/// need it at once: one message delay. A broadcast of kScatteredBroadcast bytes and more goes to
/// each other rank in part first, and these pass the parts on: the root sends each byte once.
/// REQUIRES: world >= 2, rank < world.
Schedule collective_schedule(const CollectiveParts& parts, std::uint32_t world, Rank rank,
                             std::size_t element_bytes);

inline constexpr std::uint64_t kScatteredBroadcast = 32 << 10;

}  // namespace tarpon
