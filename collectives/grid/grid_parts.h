// The parts of a grid that one rank is in: its host and its rail, and its place there.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/driver/call_runner.h"
#include "collectives/grid/grid_layout.h"

namespace tarpon::grid {

/// Members outlive the objects that refer to them.
struct GridParts {
  GridLayout layout;
  Rank self = 0;
  CallRunner* host = nullptr;  // of the ranks of this host, by place
  CallRunner* rail = nullptr;  // of the ranks of this place, by host

  std::uint32_t own_host() const { return layout.host_of(self); }
  std::uint32_t own_place() const { return layout.place_of(self); }
  const std::vector<Rank>& host_ranks() const { return layout.host(own_host()); }
  std::vector<Rank> rail_ranks() const { return layout.rail(own_place()); }
};

}  // namespace tarpon::grid
