// Dumps on signals: SIGUSR1 asks for one; a signal that ends the process leaves one behind.
//
// Handlers belong to a process, so their table of targets is process-wide. Earlier handlers are
// called after ours, and are restored when the last target is removed, unless ours have been
// replaced meanwhile. A forked child inherits handlers and table; signals to it dump only what it
// added itself, and have the effect that they had before our handlers.
#pragma once

#include "collectives/flight/dump.h"
#include "collectives/flight_options.h"

namespace tarpon {

/// How many communicators of one process can dump on signals; further ones do not.
inline constexpr std::size_t kMostSignalTargets = 16;

/// Installs the handlers of `which` that are missing; once installed they serve all targets.
/// `target` lives until remove_signal_target(). False when the table is full. Thread-safe.
bool add_signal_target(const DumpTarget& target, FlightSignals which);

/// Returns once no handler reads `target` any more, or after a second. Thread-safe.
void remove_signal_target(const DumpTarget& target);

}  // namespace tarpon
