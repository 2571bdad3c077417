// The limit of memory that the kernel locks for a user: AF_XDP and io_uring count against it.
#pragma once

#include <sys/resource.h>

#include <string>

namespace tarpon {

/// Why memory could not be locked, with the remedy: "RLIMIT_MEMLOCK is 64 KiB for all processes of
/// this user: raise it (ulimit -l unlimited)". Processes with CAP_IPC_LOCK have no limit.
inline std::string lockable_memory_text() {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return "the machine or the cgroup lacks memory";
  return "RLIMIT_MEMLOCK is " + std::to_string(limit.rlim_cur / 1024) +
         " KiB for all processes of this user: raise it (ulimit -l unlimited)";
}

}  // namespace tarpon
