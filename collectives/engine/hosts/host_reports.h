// What a call through the memory of its host tells the ranks there about its end, takes from what
// they tell, and reports of them.
//
// Pure functions.
#pragma once

#include "collectives/allreduce.h"
#include "collectives/engine/hosts/host_line.h"
#include "collectives/engine/hosts/host_peers.h"
#include "collectives/engine/hosts/line_work.h"
#include "collectives/hosts/host_group.h"
#include "transport/endpoint.h"

namespace tarpon::hosts {

/// What rank `self` tells of the call that ended with `report`, without a result: as the network
/// does.
HostLine::Ending ending_of(const Report& report, Rank self);

/// The news that local rank `rank` of `group` has given up the operation of `world` ranks. Another
/// process may have written anything.
Event abort_event(const HostGroup& group, std::uint32_t rank, const HostLine::Told& told,
                  OperationHandle operation, std::uint32_t world);

/// Adds to `report` the bytes that this rank has taken from each rank of its host, first
/// contributions, then results, and when it saw the rank begin, if no packet came later.
/// `submitted`: by the caller.
void report_near(Report& report, const HostGroup& group, const LineWork& work,
                 const HostPeers& peers, std::size_t element_bytes, Time submitted);

}  // namespace tarpon::hosts
