// The ranks of a communicator that share this rank's host, as its engine sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/hosts/host_layout.h"
#include "collectives/hosts/host_memory.h"
#include "transport/rank.h"
#include "transport/rank_mask.h"

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
  /// Bit r of `local`: local rank r. The result: bit r: rank r of the communicator.
  std::uint64_t ranks_of(std::uint64_t local) const {
    std::uint64_t result = 0;
    for (std::uint32_t rank = 0; rank < ranks().size(); ++rank) {
      if ((local >> rank & 1) != 0) result |= bit(ranks()[rank]);
    }
    return result;
  }
};

}  // namespace tarpon::hosts
