// All ranks go on, or none: what one rank cannot do ends the job on every rank, with its reason.
//
// Between exchanges ranks read, write and check files of any size, so these do not end with the
// deadline of an operation. A rank that dies ends them at once, one that stops after kControlBound.
#pragma once

#include <string>
#include <vector>

#include "collectives/rendezvous/control.h"
#include "xdp/result.h"

namespace tarpon {

inline constexpr Duration kControlBound = 10min;

/// Everybody's text on every rank. Collective. An error of any rank is everybody's error, alike on
/// all: "rank 2: TEXT", several of them in rank order.
Result<std::vector<std::string>> agree(ControlChannel& control, const Result<std::string>& mine);

/// The same without a text.
Result<void> agree(ControlChannel& control, const Result<void>& mine);

}  // namespace tarpon
