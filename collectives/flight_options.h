// How a communicator can be watched from outside: dumps and the status socket.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <string>

namespace tarpon {

struct FlightOptions {
  /// Directory of the dumps that are written after every status but complete, at most one a second.
  /// It is made if it is missing. Empty: no dumps.
  std::string directory;
  /// Dump on SIGUSR1 too, and on SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT and SIGTERM, whose
  /// earlier handlers are called afterwards. Needs a directory. Off by default in a library:
  /// signals belong to the application.
  bool signals = false;
  /// Answer on the status socket.
  bool socket = true;
};

}  // namespace tarpon
