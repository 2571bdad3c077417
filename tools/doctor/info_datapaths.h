// The data paths in `tarpon info`: those of `tarpon doctor` on one interface.
#pragma once

#include "tools/doctor/info.h"

namespace tarpon {

/// Each data path of the interface that a job of several hosts would take, or of loopback if there
/// is none: why it cannot be used, and the command that changes that.
InfoSection read_datapaths(const Environment& environment);

}  // namespace tarpon
