// How the parts of a collective beside AllReduce lie in its buffers, and its schedule.
//
// A schedule's chunks are ranges of one bucket. The input of a rank is a part of the bucket or all
// of it, and so is its output.
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
  std::vector<Range> parts;  // of each rank in the bucket, in elements; broadcast, reduce: empty
  std::uint64_t count = 0;   // elements of the bucket

  /// REQUIRES: arguments that are not refused; a world >= 1.
  static CollectiveParts of(const CollectiveArguments& arguments, std::uint32_t world);

  /// A hash of the parts, of 48 bits; 0 where all have the same size.
  std::uint64_t hash() const;

  /// The elements of the bucket that the input and the output of `rank` have; none where the rank
  /// has no such buffer. all_to_all: the input's bucket is another one than the output's.
  Range input(Rank rank) const;
  Range output(Rank rank) const;

  /// Elements of the bucket that `rank` copies from its input to its output; none: count 0.
  Range own_copy(Rank rank) const;
};

/// What `rank` sends, adds and stores. Each element of a part goes from its rank to the ranks that
/// need it at once: one message delay. A broadcast of kScatteredBroadcast bytes and more goes to
/// each other rank in part first, and these pass the parts on: the root sends each byte once.
/// REQUIRES: world >= 2, rank < world.
Schedule collective_schedule(const CollectiveParts& parts, std::uint32_t world, Rank rank,
                             std::size_t element_bytes);

inline constexpr std::uint64_t kScatteredBroadcast = 32 << 10;

}  // namespace tarpon
