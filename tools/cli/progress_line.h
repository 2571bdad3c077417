// One line of progress on a terminal, nothing when piped. Any thread.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "transport/time.h"

namespace tarpon {

class ProgressLine {
 public:
  /// Writes to `terminal`; shows nothing when that is none, or when not `visible` (only one rank
  /// shows progress).
  explicit ProgressLine(bool visible, int terminal = 2);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// `share` of the whole work is done, and `left` seconds remain, if that is known. At most ten
  /// lines a second are written.
  void update(double share, std::optional<double> left, const std::string& what);
  /// For work whose time is even: the time left follows from `share`, from the third second on.
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

/// Erases a progress line that another process left on `terminal`. Nothing when it is none.
void erase_progress(int terminal);

}  // namespace tarpon
