// The probing behind `tarpon check`: one rank's view of its peers, round by round.
#pragma once

#include <vector>

#include "collectives/driver/connect.h"
#include "tools/check/check_command.h"
#include "tools/check/pair_probe.h"

namespace tarpon {

/// Probes all pairs, rank by rank in rounds: in round k each rank probes the k-th after it.
/// Collective. Returns the pairs of all ranks on every rank. Takes at most rounds x (probes and
/// flood) plus the control channel's deadlines.
Result<std::vector<PairProbe>> probe_pairs(Connection& connection, const CheckOptions& options);

}  // namespace tarpon
