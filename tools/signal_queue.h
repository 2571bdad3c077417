// SIGINT and SIGTERM as a descriptor.
#pragma once

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "xdp/file_descriptor.h"

namespace tarpon {

/// Blocks both signals in the calling thread and queues them while this object lives.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  SignalQueue(const SignalQueue&) = delete;
  ~SignalQueue() { restore(); }

  /// Gives the thread (after fork(): the child) the mask from before.
  void restore() const { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  /// Readable when a signal waits; negative where the kernel refused it.
  int fd() const { return fd_.get(); }

  std::optional<signalfd_siginfo> next() const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
    return info;
  }

  /// Whether the terminal sent it, which sends Ctrl-C to every process of the job by itself.
  static bool is_from_terminal(const signalfd_siginfo& info) { return info.ssi_code == SI_KERNEL; }

 private:
  sigset_t before_{};
  FileDescriptor fd_;
};

}  // namespace tarpon
