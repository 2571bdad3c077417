// One line of progress on a terminal, nothing when piped.
#pragma once

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

  /// `done` of `total` steps of the whole work; at most ten lines a second are written.
  void update(double done, double total, const std::string& what);
  void clear();

 private:
  const int terminal_;
  const bool visible_;
  bool shown_ = false;
  Time started_;
  Time last_{};
};

}  // namespace tarpon
