// Which datapath each rank took and why, in one line; and why slots are small.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bpf/wire.h"
#include "collectives/rank_info.h"

namespace tarpon {

/// "all ranks uring: eth0 has no XDP program", or the ranks in groups that say the same:
/// "rank 0 xdp: ...; ranks 1-3,5 uring: ...".
std::string datapath_text(std::span<const RankInfo> ranks);

/// "MTU 1500"; "MTU 1400 (rank 1) to 9000 (rank 0)" where interfaces differ.
std::string mtu_text(const std::vector<RankInfo>& ranks);

/// Communicator::shrunk_slots() as a line of the report, with its newline; empty where that is.
std::string shrunk_line(const std::string& shrunk_slots);
/// Communicator::multicast() as such a line.
std::string multicast_line(const std::string& multicast);
/// The line about a job with a secret; empty without one. `integrity`: of the job.
std::string secret_line(tarpon_integrity integrity);

/// Communicator::hosts() as such a line. `unused`: why the calls of this run go over the network
/// all the same; empty: they do not.
std::string hosts_line(const std::string& hosts, const std::string& unused = {});

}  // namespace tarpon
