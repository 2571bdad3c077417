// Finds the network of this rank if its caller did not name it.
#pragma once

#include <string>

#include "collectives/driver/connect.h"

namespace tarpon::rendezvous {

/// Sets the address at which rank 0 of file:// listens, if the caller named an address or an
/// interface. Errors: those of choose_interface().
Result<void> fill_listen_address(CommunicatorOptions& options);

/// Fills `address`, `interface`, `driver` and `mtu` of `options` where they are empty. `local` is
/// the address of this host on the control connection (ControlChannel::local_address()): without a
/// name or an address, its interface carries the job. Errors: those of choose_interface().
Result<void> fill_network(CommunicatorOptions& options, const std::string& local);

/// Refuses loopback addresses that ranks on other hosts would have to reach. Every rank comes to
/// the same error, which names both ranks and the remedy. Ranks in different network namespaces are
/// on different hosts.
Result<void> check_reachable(const std::vector<RankInfo>& ranks);

}  // namespace tarpon::rendezvous
