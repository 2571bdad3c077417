// What watches a communicator from outside.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <string>

namespace tarpon {

struct FlightOptions {
  /// Where dumps go after every status but complete, at most one a second; made if it is missing.
  /// Empty: none.
  std::string directory;
  /// Dump on SIGUSR1 too, and on SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT and SIGTERM, whose
  /// earlier handlers are called afterwards. With a directory only. Off in a library: signals
  /// belong to the application.
  bool signals = false;
  /// Answer on the status socket.
  bool socket = true;
};

}  // namespace tarpon
