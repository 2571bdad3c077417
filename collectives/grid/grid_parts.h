// The communicators of one rank of a grid, and its place there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/driver/job_communicator.h"
#include "collectives/grid/grid_layout.h"

namespace tarpon::grid {

/// Members outlive the objects that refer to them.
struct GridParts {
  GridLayout layout;
  Rank self = 0;
  std::unique_ptr<JobCommunicator> host;  // the ranks of this host, by place
  std::unique_ptr<JobCommunicator> rail;  // the ranks of this place, by host

  std::uint32_t own_host() const { return layout.host_of(self); }
  std::uint32_t own_place() const { return layout.place_of(self); }
  const std::vector<Rank>& host_ranks() const { return layout.host(own_host()); }
  std::vector<Rank> rail_ranks() const { return layout.rail(own_place()); }
};

}  // namespace tarpon::grid
