// Circulant reduce-scatter and allgather: J. L. Traff, "Optimal, Non-pipelined Reduce-scatter and
// Allreduce Algorithms" (2024). Stage 0 takes the sums to the owners of the shards, which are those
// of TAR; stage 1 takes the results back.
#include <algorithm>
#include <utility>

#include "collectives/engine/schedules/schedule.h"

namespace tarpon {
namespace {

/// A round of the reduce-scatter: a rank sends the rank at distance `skip` its sums of the chunks
/// at distances [skip, until).
struct Round {
  std::uint32_t skip = 0;
  std::uint32_t until = 0;
};

std::vector<Round> rounds_of(std::uint32_t world) {
  std::vector<Round> rounds;
  for (std::uint32_t until = world; until > 1;) {
    const std::uint32_t skip = (until + 1) / 2;
    rounds.push_back({skip, until});
    until = skip;
  }
  return rounds;
}

}  // namespace

Schedule circulant_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                            std::uint64_t count, std::size_t element_bytes) {
  const ShardLayout layout{count, element_bytes, world};
  const std::vector<Round> rounds = rounds_of(world);
  const auto at = [&](std::uint32_t distance) {
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a job has ranks
    return static_cast<Rank>((rank + distance) % world);
  };
  // Chunk d here is the one whose result the rank at distance d makes.
  Schedule schedule;
  for (std::uint32_t distance = 0; distance < world; ++distance) {
    schedule.chunks.push_back(
        {.elements = layout.elements(shard_of(at(distance), operation, world)),
         .stored = distance > 0});
  }
  // Additions so far to the chunk at each distance, the same at every rank.
  std::vector<std::uint32_t> additions(world, 0);
  Schedule::Stage reduce;
  for (const auto [skip, until] : rounds) {
    std::vector<Schedule::Piece> sent, received;
    // Chunks that the receiver sends on in its next round go first.
    for (std::uint32_t distance = until - skip; distance-- > 0;) {
      const bool partial = additions[skip + distance] > 0;
      sent.push_back({skip + distance, additions[skip + distance], partial});
      received.push_back({distance, additions[distance] + 1, partial});
    }
    schedule.add(reduce.sends, at(skip), sent);
    schedule.add(reduce.receives, at(world - skip), received);
    for (std::uint32_t distance = 0; distance < until - skip; ++distance) ++additions[distance];
  }
  for (std::uint32_t distance = 0; distance < world; ++distance) {
    schedule.chunks[distance].additions = additions[distance];
  }

  Schedule::Stage gather;
  gather.confirmed = true;
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    const auto [skip, until] = *round;
    std::vector<Schedule::Piece> sent, received;
    for (std::uint32_t distance = 0; distance < until - skip; ++distance) {
      const std::uint32_t stored = skip + distance;
      sent.push_back({distance, schedule.chunks[distance].last_version()});
      received.push_back({stored, schedule.chunks[stored].last_version()});
    }
    schedule.add(gather.sends, at(world - skip), sent);
    schedule.add(gather.receives, at(skip), received);
  }
  schedule.stages.push_back(std::move(reduce));
  schedule.stages.push_back(std::move(gather));
  return schedule;
}

}  // namespace tarpon
