// Work in a child process, such that a SIGKILL leaves nothing of it behind.
//
// DESIGN NOTES
// 1. Two processes watch each other: the guard (the caller) and the worker (its child). Both are
//    subreapers, so that a process below them cannot leave their tree, whatever it does: fork
//    twice, setsid(), close descriptors.
// 2. SIGKILL of the guard: the kernel sends the worker SIGTERM (PR_SET_PDEATHSIG). The worker ends
//    its ranks as on any SIGTERM, then kills what they left (tools/job/process_group.h).
// 3. SIGKILL of the worker: its descendants become children of the guard, which kills them.
// 4. Not covered: one SIGKILL to both at once. Processes that left the process group survive that.
// 5. Rejected: a PID namespace, which covers note 4 too, but needs root, shows the programs other
//    process ids than `ps`, and breaks their use of /proc. Rejected: cgroup.kill, which needs a
//    delegated cgroup that most hosts do not give to users.
#pragma once

#include <functional>

#include "xdp/base/result.h"

namespace tarpon {

/// Runs `body` in a child and returns its value, from 0 to 255, when the child and all processes
/// that it left behind have ended. SIGINT and SIGTERM to this process are passed on (not a
/// terminal's own, which has reached the child already). A child that a signal ends is an error
/// (io). Buffered output of the child is flushed; its destructors outside of `body` do not run.
///
/// `started` runs in the calling process once the child has started; its error ends the child.
///
/// REQUIRES: the calling process has no other threads.
Result<int> run_guarded(const std::function<int()>& body,
                        const std::function<Result<void>()>& started = {});

}  // namespace tarpon
