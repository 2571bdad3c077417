// The parts of one rank of a live grid, with their communicators.
#pragma once

#include <memory>

#include "collectives/driver/job_communicator.h"
#include "collectives/grid/grid_parts.h"

namespace tarpon::grid {

/// `host` and `rail` are the communicators of these jobs.
struct LiveParts : GridParts {
  std::unique_ptr<JobCommunicator> host_job, rail_job;
};

}  // namespace tarpon::grid
