#include "tools/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "tools/units.h"
#include "transport/clock.h"

namespace tarpon {

ProgressLine::ProgressLine(bool visible, int terminal)
    : terminal_(terminal), visible_(visible && isatty(terminal) == 1), started_(monotonic_now()) {}

double ProgressLine::elapsed() const {
  return std::chrono::duration<double>(monotonic_now() - started_).count();
}

void ProgressLine::update(double share, std::optional<double> left, const std::string& what) {
  const std::lock_guard lock(mutex_);
  const Time now = monotonic_now();
  if (!visible_ || now - last_ < 100ms) return;
  last_ = now;
  shown_ = true;
  const std::string rest = left ? fmt::format("  ETA {:.0f} s", *left) : "";
  dprintf(terminal_, "%s", fmt::format("\r\033[K{:3.0f} %  {}{}", 100 * share, what, rest).c_str());
}

void ProgressLine::clear() {
  const std::lock_guard lock(mutex_);
  if (!shown_) return;
  dprintf(terminal_, "\r\033[K");
  shown_ = false;
}

}  // namespace tarpon
