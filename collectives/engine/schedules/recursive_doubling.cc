// Recursive doubling: in round i ranks whose numbers differ in bit i exchange what they have
// (stage 1). Ranks beyond the largest power of two hand in their buckets before (stage 0), and get
// the result afterwards (stage 2).
#include <array>
#include <bit>

#include "collectives/engine/schedules/schedule.h"

namespace tarpon {
namespace {

using Pieces = std::array<Schedule::Piece, 1>;

constexpr std::size_t kFoldIn = 0, kDoubling = 1, kFoldOut = 2;  // stages

}  // namespace

Schedule recursive_doubling_schedule(std::uint32_t world, Rank rank, std::uint64_t count) {
  const std::uint32_t rounds = static_cast<std::uint32_t>(std::bit_width(world)) - 1;
  // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): a job has ranks
  const std::uint32_t folded = world - (1u << rounds);  // pairs of the first ranks
  const bool in_pair = rank < 2 * folded;
  const bool waits = in_pair && rank % 2 == 1;
  // Ranks that exchange are numbered from 0: `own` is this rank's number.
  const std::uint32_t own = in_pair ? rank / 2u : rank - folded;
  const auto rank_of = [&](std::uint32_t number) {
    return static_cast<Rank>(number < folded ? 2 * number : number + folded);
  };

  Schedule schedule;
  const std::uint32_t first = in_pair ? 1 : 0;  // version that the exchange begins with
  schedule.chunks.push_back(
      {.elements = {0, count}, .additions = waits ? 0 : first + rounds, .stored = waits});
  schedule.stages.resize(3);
  for (Schedule::Stage& stage : schedule.stages) stage.confirmed = true;
  const auto odd = static_cast<Rank>(rank + 1);
  const auto even = static_cast<Rank>(rank - 1);
  if (waits) {
    schedule.add(schedule.stages[kFoldIn].sends, even, Pieces{{{.chunk = 0, .version = 0}}});
    schedule.add(schedule.stages[kFoldOut].receives, even, Pieces{{{.chunk = 0, .version = 1}}});
    return schedule;
  }
  if (in_pair) {
    schedule.add(schedule.stages[kFoldIn].receives, odd, Pieces{{{.chunk = 0, .version = 1}}});
    schedule.add(schedule.stages[kFoldOut].sends, odd,
                 Pieces{{{.chunk = 0, .version = first + rounds}}});
  }
  for (std::uint32_t round = 0; round < rounds; ++round) {
    const std::uint32_t other = own ^ 1u << round;
    const Rank peer = rank_of(other);
    // In round 0 a rank has the sum of two contributions where one was folded into it, else its own
    // contribution. Later it has a sum in any case.
    const std::uint32_t block = own >> round << round;
    const std::uint32_t other_block = other >> round << round;
    const bool sends_sum = round > 0 || block < folded;
    const bool receives_sum = round > 0 || other_block < folded;
    schedule.add(schedule.stages[kDoubling].sends, peer,
                 Pieces{{{.chunk = 0, .version = first + round, .partial = sends_sum}}});
    // Lower blocks are the left operands at both ends: minima and maxima of zeros depend on it.
    schedule.add(schedule.stages[kDoubling].receives, peer,
                 Pieces{{{.chunk = 0,
                          .version = first + round + 1,
                          .partial = receives_sum,
                          .left = other < own}}});
  }
  return schedule;
}

}  // namespace tarpon
