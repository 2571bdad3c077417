// What a process holds open and its forked children must not keep.
//
// A child that was made by fork() and still runs would keep a rank's descriptors open after the
// rank was killed. The control connections would not end, so the other ranks would not learn of the
// death. The XDP program, its receive queue and the UDP ports would stay taken, so the next job
// could not have them. FD_CLOEXEC helps only a child that calls exec().
//
// Therefore these descriptors are PrivateDescriptors: they are listed in a registry of the process,
// and a pthread_atfork() handler puts /dev/null in their place in the child. The descriptor's
// number stays in use, so that the child closes nothing else when it closes that number later. (The
// registry has to be global: so are fork() and the descriptors of a process.) Memory that is mapped
// from a descriptor keeps it open too: keep_from_children() leaves it out of the child.
//
// A child that a raw clone() makes keeps all of it: the handlers belong to fork().
#pragma once

#include <cstddef>
#include <utility>

#include "xdp/base/file_descriptor.h"

namespace tarpon {

/// Owns a descriptor. Move-only; empty by default. Thread-safe as far as fork() is concerned.
class PrivateDescriptor {
 public:
  PrivateDescriptor() = default;
  /// Implicit, so that it takes the place of a FileDescriptor. A child that another thread forks
  /// between the opening of `descriptor` and this call keeps it.
  PrivateDescriptor(FileDescriptor descriptor);  // NOLINT(google-explicit-constructor)
  PrivateDescriptor(PrivateDescriptor&& other) noexcept = default;
  PrivateDescriptor& operator=(PrivateDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      descriptor_ = std::move(other.descriptor_);
    }
    return *this;
  }
  ~PrivateDescriptor() { reset(); }

  int get() const { return descriptor_.get(); }
  explicit operator bool() const { return static_cast<bool>(descriptor_); }
  const FileDescriptor& descriptor() const { return descriptor_; }
  void reset();

 private:
  FileDescriptor descriptor_;
};

/// Leaves whole pages of mapped memory out of children that are forked from now on: they have
/// nothing at these addresses. Ignores null.
void keep_from_children(void* data, std::size_t bytes);

}  // namespace tarpon
