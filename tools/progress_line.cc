#include "tools/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "tools/units.h"
#include "transport/clock.h"

namespace tarpon {

ProgressLine::ProgressLine(bool visible, int terminal)
    : terminal_(terminal), visible_(visible && isatty(terminal) == 1), started_(monotonic_now()) {}

void ProgressLine::update(double done, double total, const std::string& what) {
  const Time now = monotonic_now();
  if (!visible_ || now - last_ < 100ms) return;
  last_ = now;
  shown_ = true;
  const double elapsed = std::chrono::duration<double>(now - started_).count();
  const std::string left =
      done > 0 ? fmt::format("{:.0f} s", elapsed * (total - done) / done) : "?";
  dprintf(terminal_, "%s",
          fmt::format("\r\033[K{:3.0f} %  {}  ETA {}", 100 * done / total, what, left).c_str());
}

void ProgressLine::clear() {
  if (!shown_) return;
  dprintf(terminal_, "\r\033[K");
  shown_ = false;
}

}  // namespace tarpon
