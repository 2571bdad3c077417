// All ranks go on, or none: a failure of one rank ends the job on every rank, with its reason.
//
// Between exchanges ranks read, write and check files of any size, so an exchange does not end with
// the deadline of an operation. It fails at once if a rank dies, and after kControlBound if a rank
// stops.
#pragma once

#include <string>
#include <vector>

#include "collectives/rendezvous/control.h"
#include "xdp/base/result.h"

namespace tarpon {

inline constexpr Duration kControlBound = 10min;

/// Returns the texts of all ranks on every rank. Collective. If ranks have errors, all ranks return
/// the same error: "rank 2: TEXT", several of them in rank order.
Result<std::vector<std::string>> agree(ControlChannel& control, const Result<std::string>& mine);

/// The same without a text.
Result<void> agree(ControlChannel& control, const Result<void>& mine);

}  // namespace tarpon
