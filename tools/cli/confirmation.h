// Waits a limited time for a user's "yes" on standard input.
#pragma once

#include "transport/time.h"

namespace tarpon {

enum class Confirmation { yes, time_passed, end_of_input, signal };

/// Waits for a line "yes"; ignores other lines. SIGINT, SIGTERM and SIGHUP end the wait; they are
/// not delivered otherwise during it. Call from one thread only.
Confirmation wait_for_confirmation(Duration limit);

/// "the time passed", ...
const char* reason(Confirmation confirmation);

}  // namespace tarpon
