// The ranks of a job as processes on this machine: started together, ended together.
//
// REQUIRES: the calling process has no other threads (children run C++ after fork()).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/port.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

struct ProcessGroupOptions {
  /// After the first failure the others have this long to end by themselves, ...
  Duration grace = 5s;
  /// ... and after the SIGTERM that follows, this long until SIGKILL.
  Duration kill_after = 2s;
  /// After a signal that was passed on they have this long until SIGKILL.
  Duration last_words = 2s;
  /// Receives the lines of the ranks' standard error, prefixed with the ranks that say them and
  /// without the newline (tools/job/line_merger.h). From the first failure until `grace` is over a
  /// line waits for the same line of other ranks. Also receives "rank 2 did not end and was
  /// killed", which names the ranks that got a SIGKILL after one of the two times. Default: our own
  /// standard error.
  std::function<void(std::string_view line, bool is_error)> on_error_line = {};
  /// Runs in the calling process once all ranks have started; its error ends them.
  std::function<Result<void>()> started = {};
};

/// How a rank's process ended.
struct RankStatus {
  int exit_code = -1;           // -1: ended by a signal, or unknown
  int signal = 0;               // 0: it exited, or unknown
  bool ended_by_group = false;  // we asked it to end, after another's failure or on a signal

  bool ok() const { return exit_code == 0; }
};

struct ProcessGroupResult {
  std::vector<RankStatus> ranks;
  /// The first failure in time. But a rank killed by a signal comes before ranks that exited: the
  /// kernel closes its connections, which makes others fail, before it can be reaped.
  std::optional<Rank> first_failure;
  int interrupted_by = 0;  // SIGINT or SIGTERM that this process got meanwhile

  bool ok() const { return !first_failure && interrupted_by == 0; }

  /// One line: "rank 2 was killed by signal 9 (Killed)", "ranks 0-2 exited with code 1" (all that
  /// ended with the code of the first failure), "interrupted by signal 2 (Interrupt)", "all ranks
  /// ended well".
  std::string summary() const;
};

/// Runs `body(rank)` in `ranks` forked children and waits until all have ended. The value returned
/// is the exit code; an exception is printed and counts as 1; the child ends without destructors
/// and atexit handlers. Children die with the calling thread (SIGKILL) even if it is killed.
/// Processes that the ranks leave behind are killed at the end (children that the caller had before
/// are not touched). They survive a SIGKILL of the calling process, except below run_guarded().
/// Standard output is inherited. SIGINT and SIGTERM are passed on to the children (not a terminal's
/// own, which has reached them already). Errors: io (fork, pipes), those of `started`; then no
/// child is left.
Result<ProcessGroupResult> run_process_group(std::uint32_t ranks,
                                             const std::function<int(Rank)>& body,
                                             const ProcessGroupOptions& options = {});

}  // namespace tarpon
