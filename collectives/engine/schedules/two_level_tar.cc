// TAR on two levels: a scatter in the group, TAR between the groups, a gather in the group (2D TAR
// of OptiReduce, with a scatter and a gather between the groups).
#include <cassert>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/schedules/schedule.h"

namespace tarpon {

std::uint32_t default_group_size(std::uint32_t world) {
  std::uint32_t size = 1;
  for (std::uint32_t divisor = 2; divisor * divisor <= world; ++divisor) {
    if (world % divisor == 0) size = divisor;
  }
  return size;
}

Schedule two_level_tar_schedule(std::uint32_t world, Rank rank, std::uint32_t operation,
                                std::uint64_t count, std::size_t element_bytes,
                                std::uint32_t group_size) {
  assert(group_size > 0 && world % group_size == 0);
  using Pieces = std::vector<Schedule::Piece>;
  const ShardLayout layout{count, element_bytes, world};
  const std::uint32_t size = group_size, groups = world / group_size;
  const std::uint32_t inside = size - 1, between = groups - 1;  // additions
  // The rank that is `group` groups, and `place` places in the group, further on.
  const auto at = [&](std::uint32_t group, std::uint32_t place) {
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a group has ranks, and divides the job
    return static_cast<Rank>((rank / size + group) % groups * size + (rank % size + place) % size);
  };
  // The chunk whose result the rank at(group, place) makes.
  const auto chunk = [&](std::uint32_t group, std::uint32_t place) { return group * size + place; };

  Schedule schedule;
  for (std::uint32_t group = 0; group < groups; ++group) {
    for (std::uint32_t place = 0; place < size; ++place) {
      const bool own = group == 0 && place == 0;
      schedule.chunks.push_back(
          {.elements = layout.elements(shard_of(at(group, place), operation, world)),
           .additions = own          ? inside + between
                        : place == 0 ? inside
                                     : 0,
           .stored = !own});
    }
  }
  const auto result = [&](std::uint32_t of) { return schedule.chunks[of].last_version(); };
  schedule.stages.resize(4);
  Schedule::Stage& scatter = schedule.stages[0];
  Schedule::Stage& exchange = schedule.stages[1];
  Schedule::Stage& spread = schedule.stages[2];
  Schedule::Stage& gather = schedule.stages[3];
  spread.confirmed = gather.confirmed = true;
  for (std::uint32_t place = 1; place < size; ++place) {
    Pieces sent, received, results, stored;
    for (std::uint32_t group = 0; group < groups; ++group) {
      // Chunks that the receiver sends on go first.
      const std::uint32_t first = (group + 1) % groups;
      sent.push_back({.chunk = chunk(first, size - place), .version = 0});
      received.push_back({.chunk = chunk(first, 0), .version = place});
      results.push_back({.chunk = chunk(group, 0), .version = result(chunk(group, 0))});
      stored.push_back({.chunk = chunk(group, place), .version = 1});
    }
    schedule.add(scatter.sends, at(0, size - place), sent);
    schedule.add(scatter.receives, at(0, place), received);
    schedule.add(gather.sends, at(0, size - place), results);
    schedule.add(gather.receives, at(0, place), stored);
  }
  for (std::uint32_t group = 1; group < groups; ++group) {
    const bool partial = inside > 0;
    const Rank to = at(groups - group, 0), from = at(group, 0);
    const std::uint32_t theirs = chunk(groups - group, 0), own = chunk(0, 0);
    schedule.add(exchange.sends, to, Pieces{{theirs, inside, partial}});
    schedule.add(exchange.receives, from, Pieces{{own, inside + group, partial}});
    schedule.add(spread.sends, to, Pieces{{.chunk = own, .version = result(own)}});
    schedule.add(spread.receives, from,
                 Pieces{{.chunk = chunk(group, 0), .version = result(chunk(group, 0))}});
  }
  return schedule;
}

}  // namespace tarpon
