// The data paths in `tarpon info`: those of `tarpon doctor` on one interface.
#pragma once

#include "tools/doctor/info.h"

namespace tarpon {

/// Of the interface that a job of several hosts would take, else of loopback: each data path, why
/// it cannot be used and the command that changes that.
InfoSection read_datapaths(const Environment& environment);

}  // namespace tarpon
