// Sockets of the control plane, which a forked child must not keep open.
//
// When a rank's connections end and its listening socket refuses new ones, the other ranks conclude
// that its process has ended. A child that was made by fork() and still runs would keep these
// sockets open after the rank was killed. FD_CLOEXEC helps only a child that calls exec().
// Therefore every socket of the control plane is a JobSocket: it is listed in a registry of the
// process, and a pthread_atfork() handler puts /dev/null in its place in the child. The
// descriptor's number stays in use, so that the child closes nothing else when it closes that
// number later. (The registry has to be global: so are fork() and the descriptors of a process.)
#pragma once

#include <utility>

#include "xdp/file_descriptor.h"

namespace tarpon::rendezvous {

/// Owns a socket. Move-only; empty by default. Thread-safe as far as fork() is concerned.
class JobSocket {
 public:
  JobSocket() = default;
  /// REQUIRES: no child was forked since `socket` was opened, or that does not matter.
  explicit JobSocket(FileDescriptor socket);
  JobSocket(JobSocket&& other) noexcept = default;
  JobSocket& operator=(JobSocket&& other) noexcept {
    if (this != &other) {
      reset();
      socket_ = std::move(other.socket_);
    }
    return *this;
  }
  ~JobSocket() { reset(); }

  int get() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  const FileDescriptor& descriptor() const { return socket_; }
  void reset();

 private:
  FileDescriptor socket_;
};

}  // namespace tarpon::rendezvous
