// Limits of the operating system on what a process may open and start, in words for error messages.
#pragma once

#include <string>

#include "xdp/base/result.h"

namespace tarpon {

/// Adds to `error` the limit of open files, its value and how to raise it, if the call has failed
/// because of that limit: "socket: Too many open files: this process may open 15 files: raise
/// `ulimit -n`".
Error with_limit(Error error);

/// A thread or process could not be started: "WHAT: Resource temporarily unavailable: ...", with
/// the limits of this user (`ulimit -u`) and of this control group (pids.max).
Error start_error(int error, const std::string& what);

/// Whether this process may start `count` more threads: starts them all, and ends them. Errors: io,
/// as start_error(). Takes about 50 us for each.
Result<void> check_threads(unsigned count);

}  // namespace tarpon
