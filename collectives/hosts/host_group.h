// The ranks of a communicator that share this rank's host, as its engine sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/hosts/host_layout.h"
#include "collectives/hosts/host_memory.h"
#include "transport/rank.h"

namespace tarpon::hosts {

/// Ends the sleep of other ranks of the host.
class Bells {
 public:
  virtual ~Bells() = default;
  /// Has the driver of local rank `rank` look at its calls. Never blocks.
  virtual void ring(std::uint32_t rank) = 0;
};

struct HostGroup {
  HostMemory memory;
  HostLayout layout;
  std::uint32_t host = 0;  // this rank's host
  std::uint32_t self = 0;  // this rank's place there
  Bells* bells = nullptr;  // outlives the group

  /// The ranks of this host, by local rank.
  const std::vector<Rank>& ranks() const { return layout.hosts[host]; }
};

}  // namespace tarpon::hosts
