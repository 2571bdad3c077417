// Ends a sleep of the driving thread from any other thread, and with a bell from any other process
// of the network namespace.
//
// A bell is an abstract UNIX datagram socket. A rank needs no descriptor of another one to ring: it
// sends to the name of that rank's bell. A full bell can be read, so its port wakes without another
// datagram.
#pragma once

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transport/port.h"
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

  /// A bell; an eventfd where this process may have no abstract UNIX sockets.
  static Result<FileDescriptor> open_bell() {
    FileDescriptor fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd && errno == EMFILE) return fail_system(errno, "UNIX socket for wake-ups");
    // An address without a name has the kernel choose a free one.
    const sockaddr_un any{.sun_family = AF_UNIX, .sun_path = {}};
    const auto* const address = reinterpret_cast<const sockaddr*>(&any);
    if (!fd || ::bind(fd.get(), address, sizeof any.sun_family) != 0) return open();
    return fd;
  }

  /// Takes what open() or open_bell() returned.
  explicit WakeEvent(FileDescriptor fd) : name_(name_of(fd.get())), fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }

  /// Zeros: other processes cannot ring.
  const BellName& name() const { return name_; }

  /// Makes fd() readable. At most one system call between two calls of consumed(), unless the
  /// kernel refuses it.
  void wake() {
    if (pending_.exchange(true, std::memory_order_acq_rel)) return;
    if (name_ != BellName{}) {
      if (!ring(name_))
        pending_.store(false, std::memory_order_release);  // the next one tries again
      return;
    }
    const std::uint64_t one = 1;
    // Cannot fail: the counter never exceeds 1.
    [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
  }

  /// Rings the bell of another port. Never blocks. Returns false if the bell is full, and can be
  /// read, or if it is gone, or the kernel has no memory. REQUIRES: name() is not zeros.
  bool ring(const BellName& bell) const {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::memcpy(address.sun_path + 1, bell.data(), bell.size());
    const auto length = offsetof(sockaddr_un, sun_path) + 1 + ::strnlen(bell.data(), bell.size());
    const std::uint64_t one = 1;
    return ::sendto(fd_.get(), &one, sizeof one, MSG_DONTWAIT | MSG_NOSIGNAL,
                    reinterpret_cast<const sockaddr*>(&address),
                    static_cast<socklen_t>(length)) == sizeof one;
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
  static BellName name_of(int fd) {
    sockaddr_un address{};
    socklen_t length = sizeof address;
    BellName name{};
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return name;
    // A name of the kernel's choice is a zero and five digits.
    std::memcpy(name.data(), address.sun_path + 1, name.size());
    return name;
  }

  const BellName name_;
  PrivateDescriptor fd_;
  std::atomic<bool> pending_{false};
};

}  // namespace tarpon
