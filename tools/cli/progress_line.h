// One line of progress on a terminal, nothing if output is piped or the terminal is dumb. Any
// thread.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "transport/time.h"

namespace tarpon {

class ProgressLine {
 public:
  /// Writes to `terminal`. Shows nothing if that is no terminal that takes_control_sequences(), or
  /// if not `visible` (only one rank shows progress).
  explicit ProgressLine(bool visible, int terminal = 2);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Shows that `share` of the whole work is done, and that `left` seconds remain, if that is
  /// known. Writes at most ten lines a second.
  void update(double share, std::optional<double> left, const std::string& what);
  /// For work that progresses evenly: computes the time left from `share`, from the third second
  /// on.
  void update(double share, const std::string& what);
  void clear();

  /// Seconds since it was made.
  double elapsed() const;

 private:
  const int terminal_;
  const bool visible_;
  std::mutex mutex_;
  bool shown_ = false;
  const Time started_;
  Time last_{};
};

/// Erases a progress line that another process left on `terminal`; does nothing if that is no
/// terminal.
void erase_progress(int terminal);

}  // namespace tarpon
