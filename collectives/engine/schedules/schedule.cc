#include "collectives/engine/schedules/schedule.h"

#include <cassert>

namespace tarpon {

Schedule schedule_of(Algorithm algorithm, std::uint32_t world, Rank rank, std::uint32_t operation,
                     std::uint64_t count, std::size_t element_bytes) {
  switch (algorithm) {
    case Algorithm::circulant:
      return circulant_schedule(world, rank, operation, count, element_bytes);
    case Algorithm::one_shot:
      return one_shot_schedule(world, rank, count);
    case Algorithm::tar:
      break;
  }
  assert(false && "TarSchedule");
  return {};
}

}  // namespace tarpon
