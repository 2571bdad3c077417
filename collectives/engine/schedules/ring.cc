// Ring AllReduce: every chunk goes round and is added up (stage 0), then its result goes round
// (stage 1). The owners of TAR make the results.
#include "collectives/engine/schedules/schedule.h"

namespace tarpon {

Schedule ring_schedule(std::uint32_t world, Rank rank, std::uint32_t operation, std::uint64_t count,
                       std::size_t element_bytes) {
  const ShardLayout layout{count, element_bytes, world};
  const auto at = [&](std::uint32_t distance) {
    return static_cast<Rank>((rank + distance) % world);
  };
  // Chunk d is the one whose result the rank at distance d makes. It starts at the successor of
  // that rank, where d is world - 1.
  const std::uint32_t start = world - 1;
  Schedule schedule;
  schedule.chunks.reserve(world);
  for (std::uint32_t distance = 0; distance < world; ++distance) {
    schedule.chunks.push_back(
        {.elements = layout.elements(shard_of(at(distance), operation, world)),
         .additions = distance == start ? 0u : 1u,
         .stored = distance > 0});
  }
  std::vector<Schedule::Piece> sent, received;
  for (std::uint32_t distance = start; distance > 0; --distance) {
    const bool partial = distance < start;
    sent.push_back({distance, schedule.chunks[distance].additions, partial});
    received.push_back({distance - 1, 1, partial});
  }
  schedule.stages.resize(2);
  schedule.add(schedule.stages[0].sends, at(1), sent);
  schedule.add(schedule.stages[0].receives, at(start), received);

  sent.clear();
  received.clear();
  for (std::uint32_t step = 0; step < start; ++step) {
    const std::uint32_t here = (world - step) % world;  // 0, world - 1, ..., 2
    const std::uint32_t stored = start - step;
    sent.push_back({here, schedule.chunks[here].last_version()});
    received.push_back({stored, schedule.chunks[stored].last_version()});
  }
  schedule.stages[1].confirmed = true;
  schedule.add(schedule.stages[1].sends, at(1), sent);
  schedule.add(schedule.stages[1].receives, at(start), received);
  return schedule;
}

}  // namespace tarpon
