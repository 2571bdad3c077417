// SIGINT and SIGTERM as a request to say what is known so far.
#pragma once

#include <csignal>
#include <functional>
#include <initializer_list>
#include <thread>
#include <vector>

#include "xdp/file_descriptor.h"

namespace tarpon {

/// While it lives, the first SIGINT or SIGTERM to this process runs `last_words` in a thread of its
/// own. Then the signal takes the effect that it had before. A second one, later than kSameRequest
/// (signal_queue.h), ends the process at once. `last_words` has to guard what it shares with other
/// threads; it may use what a thread may use, and throw what std::exception is the base of.
///
/// A signal that the process ignores stays ignored. mpirun and batch systems send SIGTERM for a
/// user's Ctrl-C.
///
/// REQUIRES: one object at a time. Where signals cannot be watched, they keep their effect.
class Interruption {
 public:
  explicit Interruption(std::function<void()> last_words);

  /// Watches SIGINT alone. For times in which others may set a handler of SIGTERM (flight
  /// recordings do, while a communicator is made).
  static Interruption of_keyboard(std::function<void()> last_words);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// After a signal: does not return. For a failure that may follow from the same Ctrl-C, which
  /// ends the other ranks too.
  void yield() const;

 private:
  Interruption(std::function<void()> last_words, std::initializer_list<int> signals);

  struct Watched {
    int signal = 0;
    bool ignored = false;
    struct sigaction earlier {};
  };

  void watch();
  void restore();

  std::function<void()> last_words_;
  std::vector<Watched> watched_;
  FileDescriptor read_end_, write_end_;
  std::thread thread_;
};

}  // namespace tarpon
