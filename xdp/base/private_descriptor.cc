#include "xdp/base/private_descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace tarpon {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<int> descriptors;
};

void close_in_child();

/// Never destroyed: descriptors may outlive static objects.
Registry& registry() {
  static Registry* const the = [] {
    auto* const made = new Registry;
    // The mutex is held across fork(), so that the child finds a whole set.
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   close_in_child);
    return made;
  }();
  return *the;
}

void close_in_child() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int descriptor : registry().descriptors) {
    if (null < 0) {
      ::close(descriptor);  // no /dev/null to put there: the rank must not seem to live
    } else {
      (void)::dup3(null, descriptor, O_CLOEXEC);
    }
  }
  if (null >= 0) ::close(null);
  registry().descriptors.clear();
  registry().mutex.unlock();
}

}  // namespace

PrivateDescriptor::PrivateDescriptor(FileDescriptor descriptor)
    : descriptor_(std::move(descriptor)) {
  if (!descriptor_) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.descriptors.insert(descriptor_.get());
}

void PrivateDescriptor::reset() {
  if (!descriptor_) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);  // fork() waits until the number is free and not listed
  all.descriptors.erase(descriptor_.get());
  descriptor_.reset();
}

void keep_from_children(void* data, std::size_t bytes) {
  if (data != nullptr)
    (void)::madvise(data, bytes, MADV_DONTFORK);  // it fails for no mapping of ours
}

}  // namespace tarpon
