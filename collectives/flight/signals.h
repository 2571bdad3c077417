// Dumps on signals: SIGUSR1 asks for one; a signal that ends the process leaves one behind.
//
// Handlers belong to a process, so what they find is process-wide: a table of targets. Handlers
// that were there before are called after ours, and are back when the last target is removed,
// unless somebody has put others in place of ours.
#pragma once

#include "collectives/flight/dump.h"

namespace tarpon {

/// Communicators of one process that can dump on signals; further ones do not.
inline constexpr std::size_t kMostSignalTargets = 16;

/// Installs the handlers with the first target. `target` lives until remove_signal_target(). False
/// when the table is full. Thread-safe.
bool add_signal_target(const DumpTarget& target);

/// Returns once no handler reads it any more, or after a second. Thread-safe.
void remove_signal_target(const DumpTarget& target);

}  // namespace tarpon
