// SIGINT and SIGTERM as a descriptor.
#pragma once

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <optional>
#include <utility>

#include "transport/clock.h"
#include "transport/time.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {

/// A signal so soon after another one is the same request: `timeout` and batch systems signal each
/// process of a group, and our parent passes its own on.
inline constexpr Duration kSameRequest = 500ms;

/// Blocks both signals in the calling thread and queues them while this object lives. A signal that
/// the process ignores, as those in the background of a script ignore SIGINT, stays ignored.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM}) {
      if (!is_ignored(signal)) sigaddset(&set, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  SignalQueue(const SignalQueue&) = delete;
  ~SignalQueue() { restore(); }

  /// Gives the thread (after fork(): the child) the mask from before.
  void restore() const { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  /// Readable when a signal waits; negative where the kernel refused it.
  int fd() const { return fd_.get(); }

  /// The next request; repeats of it are passed over.
  std::optional<signalfd_siginfo> next() {
    signalfd_siginfo info{};
    while (::read(fd_.get(), &info, sizeof info) == sizeof info) {
      const Time now = monotonic_now();
      const bool repeated = std::exchange(last_signal_, info.ssi_signo) == info.ssi_signo &&
                            now < last_ + kSameRequest;
      if (repeated) continue;
      last_ = now;
      return info;
    }
    return std::nullopt;
  }

  /// Whether the terminal sent it. The terminal itself sends Ctrl-C to every process of the job.
  static bool is_from_terminal(const signalfd_siginfo& info) { return info.ssi_code == SI_KERNEL; }

 private:
  static bool is_ignored(int signal) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
  }

  sigset_t before_{};
  Time last_{};
  std::uint32_t last_signal_ = 0;
  FileDescriptor fd_;
};

}  // namespace tarpon
