// All ranks go on, or none: what one rank cannot do ends the job on every rank, with its reason.
#pragma once

#include <string>
#include <vector>

#include "collectives/control.h"
#include "xdp/result.h"

namespace tarpon {

/// Everybody's text on every rank. Collective. An error of any rank is everybody's error, alike on
/// all: "rank 2: TEXT", several of them in rank order.
Result<std::vector<std::string>> agree(ControlChannel& control, const Result<std::string>& mine,
                                       Duration deadline);

/// The same without a text.
Result<void> agree(ControlChannel& control, const Result<void>& mine, Duration deadline);

}  // namespace tarpon
