#include "tools/job/guarded_run.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "tools/cli/exit_code.h"
#include "tools/system/signal_queue.h"
#include "tools/system/subreaper.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/base/system_limits.h"

namespace tarpon {
namespace {

[[noreturn]] void work(const std::function<int()>& body, pid_t guard, const SignalQueue& signals) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != guard) ::_exit(1);
  signals.restore();
  const int code = with_output_written(body());
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(code);
}

/// Passes signals on until `worker` has ended. Returns its wait status.
Result<int> wait_for(pid_t worker, const FileDescriptor& pidfd, SignalQueue& signals) {
  for (;;) {
    int status = 0;
    const pid_t found = ::waitpid(worker, &status, WNOHANG);
    if (found > 0) return status;
    if (found < 0) return fail_system(errno, "cannot wait for the process that starts the ranks");
    std::array<pollfd, 2> ready{pollfd{signals.fd(), POLLIN, 0}, pollfd{pidfd.get(), POLLIN, 0}};
    ::poll(ready.data(), ready.size(), -1);
    while (const auto info = signals.next()) {
      if (SignalQueue::is_from_terminal(*info)) continue;
      ::kill(worker, static_cast<int>(info->ssi_signo));
    }
  }
}

}  // namespace

Result<int> run_guarded(const std::function<int()>& body,
                        const std::function<Result<void>()>& started) {
  const Subreaper subreaper;
  SignalQueue signals;
  if (signals.fd() < 0) return fail_system(errno, "cannot watch for signals");
  // Text that waits in a buffer now would be printed by the child as well.
  std::fflush(nullptr);
  std::cout.flush();
  const pid_t guard = ::getpid();
  const pid_t worker = ::fork();
  if (worker < 0) return fail(start_error(errno, "cannot start a process"));
  if (worker == 0) work(body, guard, signals);
  const FileDescriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, worker, 0)));
  Result<void> ready;
  if (!pidfd) ready = fail_system(errno, "cannot watch a process");
  if (ready && started) ready = started();
  if (!ready) {
    ::kill(worker, SIGTERM);
    while (::waitpid(worker, nullptr, 0) < 0 && errno == EINTR) {
    }
    subreaper.kill_all();
    return fail(ready.error());
  }
  const auto status = wait_for(worker, pidfd, signals);
  subreaper.kill_all();
  if (!status) return fail(status.error());
  if (WIFEXITED(*status)) return WEXITSTATUS(*status);
  return fail(Error::Code::io, fmt::format("the process that starts the ranks was killed by "
                                           "signal {} ({})",
                                           WTERMSIG(*status), ::strsignal(WTERMSIG(*status))));
}

}  // namespace tarpon
