// Which ranks of a job, or of a part of it, share a host, and the memory that these share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/hosts/host_layout.h"
#include "collectives/rank_info.h"
#include "transport/time.h"

namespace tarpon {

/// How long a rank waits for the memory. All ranks of its host are here.
inline constexpr Duration kSharingPatience = 5s;

/// Ranks of one network namespace share a host.
hosts::HostLayout layout_of(const std::vector<RankInfo>& ranks);

/// Why the ranks share no memory; empty if they may, as far as these descriptions tell.
std::string against_sharing(const std::vector<RankInfo>& ranks);

/// Communicator::hosts() where the ranks share memory.
std::string sharing_text(const hosts::HostLayout& layout);

/// The name of the door of the lowest rank of a host for communicator `number`, which is split from
/// its job. Empty: it has no door.
std::string split_door(const RankInfo& lowest, std::uint16_t number);

}  // namespace tarpon
