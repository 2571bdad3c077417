// Processes that lose their parent become children of this process, and are killed by it.
// Children can be waited for, whatever the parent of this process does with its own.
#pragma once

#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <set>

namespace tarpon {

/// While this object lives, orphans among the descendants become ours instead of init's. SIGCHLD
/// has its default action: a process that inherits it as ignored loses the status of every child.
class Subreaper {
 public:
  Subreaper() : own_(children()) {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    struct sigaction by_default = {};
    by_default.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &by_default, &sigchld_before_);
  }
  Subreaper(const Subreaper&) = delete;
  ~Subreaper() {
    ::sigaction(SIGCHLD, &sigchld_before_, nullptr);
    ::prctl(PR_SET_CHILD_SUBREAPER, before_);
  }

  /// Kills all descendants, but not the children that were there before this object.
  /// REQUIRES: all children since the constructor have been waited for.
  void kill_all() const {
    // The children of a killed process become ours in the next round.
    for (bool any = true; any;) {
      any = false;
      for (const pid_t child : children()) {
        // A process of another user cannot be killed, nor waited for.
        if (own_.contains(child) || ::kill(child, SIGKILL) != 0) continue;
        any = true;
        while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
        }
      }
    }
  }

 private:
  static std::set<pid_t> children() {
    std::ifstream file("/proc/thread-self/children");
    return {std::istream_iterator<pid_t>(file), {}};
  }

  const std::set<pid_t> own_;
  int before_ = 0;
  struct sigaction sigchld_before_ = {};
};

}  // namespace tarpon
