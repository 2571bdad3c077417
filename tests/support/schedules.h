// The schedules of all ranks of a job.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/engine/schedules/schedule.h"
#include "tests/support/exact_kinds.h"

namespace tarpon::testing_support {

struct JobSchedules {
  std::uint64_t count;
  std::vector<Schedule> ranks;

  std::uint32_t world() const { return static_cast<std::uint32_t>(ranks.size()); }
};

inline JobSchedules job_of(ExactKind kind, std::uint32_t world, std::uint32_t operation,
                           std::uint64_t count) {
  AllreduceArguments call;
  call.count = count;
  kind.ask(call, world);
  JobSchedules job{count, {}};
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    job.ranks.push_back(schedule_of(call, world, static_cast<Rank>(rank), operation));
  }
  return job;
}

inline JobSchedules job_of(Algorithm algorithm, std::uint32_t world, std::uint32_t operation,
                           std::uint64_t count) {
  return job_of(ExactKind{algorithm}, world, operation, count);
}

}  // namespace tarpon::testing_support
