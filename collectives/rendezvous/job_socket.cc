#include "collectives/rendezvous/job_socket.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace tarpon::rendezvous {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<int> sockets;
};

void close_in_child();

/// Never destroyed: sockets may outlive static objects.
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
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int socket : registry().sockets) {
    if (null < 0) {
      ::close(socket);  // no /dev/null to put there: the rank must not seem to live
    } else {
      (void)dup3(null, socket, O_CLOEXEC);
    }
  }
  if (null >= 0) ::close(null);
  registry().sockets.clear();
  registry().mutex.unlock();
}

}  // namespace

JobSocket::JobSocket(FileDescriptor socket) : socket_(std::move(socket)) {
  if (!socket_) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.sockets.insert(socket_.get());
}

void JobSocket::reset() {
  if (!socket_) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);  // fork() waits until the number is free and not listed
  all.sockets.erase(socket_.get());
  socket_.reset();
}

}  // namespace tarpon::rendezvous
