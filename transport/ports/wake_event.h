// Ends a sleep of the driving thread from any other thread: an eventfd with a memory.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon {

/// wake() from any thread; the rest from the thread that drives the port.
class WakeEvent {
 public:
  /// A blocking eventfd: io_uring would fail a read of a non-blocking one instead of waiting.
  static Result<FileDescriptor> open() {
    FileDescriptor fd(::eventfd(0, EFD_CLOEXEC));
    if (fd.get() < 0) return fail_system(errno, "eventfd for wake-ups");
    return fd;
  }

  explicit WakeEvent(FileDescriptor fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }

  /// Makes fd() readable. At most one system call between two calls of consumed().
  void wake() {
    if (pending_.exchange(true, std::memory_order_acq_rel)) return;
    const std::uint64_t one = 1;
    // Cannot fail: the counter never exceeds 1.
    [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
  }

  /// Reads fd(), which is readable.
  void drain() {
    std::uint64_t count = 0;
    // Cannot block: this thread alone reads.
    [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &count, sizeof count);
    consumed();
  }

  /// Call it after fd() was read. A wake() before this returns belongs to the wake-up just seen.
  void consumed() { pending_.exchange(false, std::memory_order_acq_rel); }

 private:
  PrivateDescriptor fd_;
  std::atomic<bool> pending_{false};
};

}  // namespace tarpon
