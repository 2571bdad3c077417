// Processes that lose their parent become children of this process, and are killed by it.
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

/// While this object lives, orphans among the descendants become ours instead of init's.
class Subreaper {
 public:
  Subreaper() : own_(children()) {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  Subreaper(const Subreaper&) = delete;
  ~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }

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
};

}  // namespace tarpon
