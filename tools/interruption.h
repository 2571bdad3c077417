// SIGINT as a request to say what is known so far.
#pragma once

#include <functional>
#include <thread>

#include "xdp/file_descriptor.h"

namespace tarpon {

/// While it lives, the first SIGINT to this process runs `last_words` in a thread of its own, and
/// then ends the process by SIGINT. A second SIGINT ends it at once. `last_words` has to guard what
/// it shares with other threads; it may use what a thread may use.
///
/// REQUIRES: one object at a time. Where the signal cannot be watched, SIGINT keeps its effect.
class Interruption {
 public:
  explicit Interruption(std::function<void()> last_words);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// After a SIGINT: does not return. For a failure that may follow from the same Ctrl-C, which
  /// ends the other ranks too.
  void yield() const;

 private:
  void watch();

  std::function<void()> last_words_;
  FileDescriptor read_end_, write_end_;
  std::thread thread_;
};

}  // namespace tarpon
