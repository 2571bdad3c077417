// One-shot AllReduce: every rank sends its whole bucket to every other rank.
#include <array>

#include "collectives/engine/schedules/schedule.h"

namespace tarpon {

Schedule one_shot_schedule(std::uint32_t world, Rank rank, std::uint64_t count) {
  using Pieces = std::array<Schedule::Piece, 1>;
  Schedule schedule;
  schedule.chunks.push_back({.elements = {0, count}, .additions = world - 1, .own_turn = rank});
  schedule.stages.resize(1);
  Schedule::Stage& stage = schedule.stages[0];
  stage.confirmed = true;
  stage.alike = true;
  for (std::uint32_t distance = 1; distance < world; ++distance) {
    const auto to = static_cast<Rank>((rank + world - distance) % world);
    const auto from = static_cast<Rank>((rank + distance) % world);
    const std::uint32_t turn = from < rank ? from + 1u : from;
    schedule.add(stage.sends, to, Pieces{{{.chunk = 0, .version = 0}}});
    schedule.add(stage.receives, from, Pieces{{{.chunk = 0, .version = turn}}});
  }
  return schedule;
}

}  // namespace tarpon
