// One-shot AllReduce: everybody sends everything to everybody.
#include "collectives/engine/schedules/schedule.h"

namespace tarpon {

Schedule one_shot_schedule(std::uint32_t world, Rank rank, std::uint64_t count) {
  Schedule schedule;
  schedule.chunks.push_back({.elements = {0, count}, .additions = world - 1, .own_turn = rank});
  Schedule::Stage stage;
  stage.confirmed = true;
  for (std::uint32_t distance = 1; count > 0 && distance < world; ++distance) {
    const auto to = static_cast<Rank>((rank + world - distance) % world);
    const auto from = static_cast<Rank>((rank + distance) % world);
    const std::uint32_t turn = from < rank ? from + 1u : from;
    stage.sends.push_back({to, {{.chunk = 0, .version = 0}}});
    stage.receives.push_back({from, {{.chunk = 0, .version = turn}}});
  }
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

}  // namespace tarpon
