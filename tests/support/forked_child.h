// A child of the test that fork() makes while the test's threads run.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace tarpon::testing_support {

/// Runs `body()` in a forked child and returns the exit code that `body` returns, or minus the
/// signal that ended the child: -14 (SIGALRM) if it took `limit_s` seconds. No destructors run.
template <typename Body>
int in_forked_child(Body body, unsigned limit_s = 30) {
  const pid_t child = ::fork();
  if (child < 0) return 1000 + errno;
  if (child == 0) {
    ::alarm(limit_s);
    ::_exit(body());
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return 2000 + errno;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace tarpon::testing_support
