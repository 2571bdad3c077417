// On SIGINT and SIGTERM, reports what is known so far.
#pragma once

#include <csignal>
#include <functional>
#include <initializer_list>
#include <thread>
#include <vector>

#include "xdp/base/file_descriptor.h"

namespace tarpon {

/// While it lives, the first SIGINT or SIGTERM to this process runs `last_words` in a thread of its
/// own. Then the signal takes the effect that it had before. A second one, later than kSameRequest
/// (signal_queue.h), ends the process at once. `last_words` must guard what it shares with other
/// threads. It may do what a thread may do, and throw exceptions derived from std::exception.
///
/// A signal that the process ignores stays ignored. mpirun and batch systems send SIGTERM for a
/// user's Ctrl-C.
///
/// REQUIRES: one object at a time. If signals cannot be watched, they keep their effect.
class Interruption {
 public:
  explicit Interruption(std::function<void()> last_words);

  /// Watches only SIGINT. Use it while other code may set a handler of SIGTERM (flight recordings
  /// do so while a communicator is made).
  static Interruption of_keyboard(std::function<void()> last_words);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// After a signal: does not return. Call it before reporting a failure, which may follow from the
  /// same Ctrl-C, as that ends the other ranks too.
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
