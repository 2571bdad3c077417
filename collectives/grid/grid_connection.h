// Forms a grid: its ranks meet, learn the layout, and connect the communicators of hosts and rails.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/grid/live_parts.h"
#include "collectives/options.h"
#include "collectives/rank_info.h"
#include "collectives/rendezvous/control.h"
#include "xdp/base/result.h"

namespace tarpon::grid {

/// Names the host of a rank; equal for ranks that may share memory.
using HostKey = std::function<std::string(Rank)>;

struct GridConnection {
  std::unique_ptr<ControlChannel> control;  // of all ranks
  std::unique_ptr<LiveParts> parts;
  /// By rank. On rank 0 complete. Elsewhere complete for the ranks of this rail; those of this host
  /// have what they use in the host, on loopback; others have their host's name.
  std::vector<RankInfo> ranks;
};

/// Blocks for at most options.rendezvous.timeout. `key`: empty: ranks of a network namespace share
/// a host. `watcher`: of both communicators. Errors are the same on every rank that could be
/// reached, and have the ranks' numbers in the job.
Result<GridConnection> connect_grid(const CommunicatorOptions& options, const HostKey& key,
                                    const std::function<void()>& watcher);

}  // namespace tarpon::grid
