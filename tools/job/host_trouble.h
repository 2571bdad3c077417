// What a rank's own host does to its packets, which looks like a fault of the network to the peers.
#pragma once

#include <string>
#include <vector>

#include "collectives/rank_info.h"
#include "transport/port.h"

namespace tarpon {

/// A line that names the ranks whose receive buffer holds less than 64 KiB, and the remedy; empty
/// if there are none.
std::string small_buffers_line(const std::vector<RankInfo>& ranks);

/// A clause about the packets that this host refused to send, or lost in its own receive buffer,
/// between the two counts, with the remedy. Empty if there were none. `mtu`: of the interface when
/// the job began.
std::string host_trouble(const PortStatistics& before, const PortStatistics& after,
                         std::uint32_t mtu);

}  // namespace tarpon
