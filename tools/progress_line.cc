#include "tools/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "tools/units.h"
#include "transport/clock.h"

namespace tarpon {

ProgressLine::ProgressLine(bool visible)
    : visible_(visible && isatty(STDERR_FILENO) == 1), started_(monotonic_now()) {}

void ProgressLine::update(double done, double total, const std::string& what) {
  const Time now = monotonic_now();
  if (!visible_ || now - last_ < 100ms) return;
  last_ = now;
  shown_ = true;
  const double elapsed = std::chrono::duration<double>(now - started_).count();
  const double left = done > 0 ? elapsed * (total - done) / done : 0;
  fmt::print(stderr, "\r\033[K{:3.0f} %  {}  ETA {:.0f} s", 100 * done / total, what, left);
  std::fflush(stderr);
}

void ProgressLine::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace tarpon
