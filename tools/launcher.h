// Which rank of which job this process is, and where the job meets.
//
// The rank comes from explicit flags or from the launcher's variables, the first complete set wins:
// torchrun, Open MPI, PMI, PMIx, Slurm. The meeting point follows one rule, see find_rendezvous().
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/debug_log.h"
#include "tools/environment.h"
#include "transport/port.h"
#include "xdp/result.h"

namespace tarpon {

/// What the user said; all optional.
struct LaunchFlags {
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> world_size;
  std::optional<std::string> rendezvous;  // "tcp://HOST:PORT", "HOST:PORT" or "file://PATH"
};

struct LaunchPlace {
  Rank rank = 0;
  std::uint32_t world_size = 1;
  int local_size = -1;   // ranks on this host; -1: not known
  std::string launcher;  // "flags", "torchrun", "Open MPI", "PMI", "PMIx", "Slurm"
  /// Explicit, or from MASTER_ADDR; nullopt: ask find_rendezvous().
  std::optional<std::string> rendezvous;
  /// Set where whoever started the rank knows it (the testbed).
  std::optional<std::string> interface = std::nullopt;
  /// Where progress may be shown: standard error, unless that is captured.
  int progress_fd = 2;
  std::string job_id;  // alike on the ranks of a job, differs between jobs of a user; may be empty
  DebugLog log;        // opened by whoever starts the rank

  bool all_local() const {
    return world_size == 1 ||
           (local_size > 0 && static_cast<std::uint32_t>(local_size) == world_size);
  }
};

/// nullopt when neither flags nor a launcher place this process. Errors (invalid_argument) name the
/// variable or flag, its value and what is allowed.
Result<std::optional<LaunchPlace>> find_launch_place(const LaunchFlags& flags,
                                                     const Environment& environment);

/// Where the job meets: place.rendezvous; else "" for a job of one rank, which meets nobody; else,
/// when all ranks are local by the launcher's count, "file://DIR/rendezvous" with DIR named by user
/// and job, below $XDG_RUNTIME_DIR or /tmp, mode 0700, made here and checked to be ours
/// (permission); else an error that asks for --rendezvous.
Result<std::string> find_rendezvous(const LaunchPlace& place, const Environment& environment);

/// Removes the private directory of find_rendezvous() unless it holds a file: rank 0 removes its
/// own when it has met the others, or cannot. For every rank, once it has joined or failed to.
/// Other addresses are left alone.
void remove_rendezvous(const std::string& address);

}  // namespace tarpon
