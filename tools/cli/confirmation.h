// A user's "yes" on standard input, in time.
#pragma once

#include "transport/time.h"

namespace tarpon {

enum class Confirmation { yes, time_passed, end_of_input, signal };

/// Waits for a line "yes"; other lines are ignored. SIGINT, SIGTERM and SIGHUP end it, and are not
/// delivered otherwise meanwhile. One thread.
Confirmation wait_for_confirmation(Duration limit);

/// "the time passed", ...
const char* reason(Confirmation confirmation);

}  // namespace tarpon
