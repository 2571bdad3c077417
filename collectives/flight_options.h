// How a communicator can be watched from outside: dumps and the status socket.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <string>

namespace tarpon {

/// Signals that make a rank dump: SIGUSR1, after which the process goes on, and SIGSEGV, SIGBUS,
/// SIGFPE, SIGILL, SIGABRT and SIGTERM, which still end it.
enum class FlightSignals {
  none,
  unhandled,  // those for which the process has no handler yet, and which it does not ignore
  all,        // handlers of the process are called after the dump
};

struct FlightOptions {
  /// Directory of the dumps that are written after every status but complete, at most one a second.
  /// It is made if it is missing. Empty: no dumps.
  std::string directory;
  /// Dump on these signals too. Needs a directory. None by default, because signals belong to the
  /// application; `unhandled` where TARPON_FLIGHT names the directory.
  FlightSignals signals = FlightSignals::none;
  /// Answer on the status socket.
  bool socket = true;
};

}  // namespace tarpon
