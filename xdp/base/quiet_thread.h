// Threads of a library, which leave the signals of the application to the application.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace tarpon {

/// Starts a thread that receives no signal of the application. Throws std::system_error.
template <typename Body>
std::thread quiet_thread(Body body) {
  struct AllBlocked {
    AllBlocked() {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~AllBlocked() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    AllBlocked(const AllBlocked&) = delete;
    AllBlocked& operator=(const AllBlocked&) = delete;
    sigset_t before;
  };
  const AllBlocked blocked;
  return std::thread(std::move(body));
}

}  // namespace tarpon
