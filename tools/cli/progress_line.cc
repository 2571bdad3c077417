#include "tools/cli/progress_line.h"

#include <fmt/format.h>

#include <cstdio>

#include "tools/cli/colour.h"
#include "tools/cli/units.h"
#include "transport/clock.h"

namespace tarpon {
namespace {

constexpr double kQuiet = 3;  // seconds without an estimate
constexpr const char* kErase = "\r\033[K";

}  // namespace

ProgressLine::ProgressLine(bool visible, int terminal)
    : terminal_(terminal),
      visible_(visible && takes_control_sequences(terminal, process_environment())),
      started_(monotonic_now()) {}

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
  dprintf(terminal_, "%s",
          fmt::format("{}{:3.0f} %  {}{}", kErase, 100 * share, what, rest).c_str());
}

void ProgressLine::update(double share, const std::string& what) {
  const double now = elapsed();
  const bool known = now >= kQuiet && share > 0;
  update(share, known ? std::optional(now / share - now) : std::nullopt, what);
}

void ProgressLine::clear() {
  const std::lock_guard lock(mutex_);
  if (!shown_) return;
  dprintf(terminal_, "%s", kErase);
  shown_ = false;
}

void erase_progress(int terminal) {
  if (takes_control_sequences(terminal, process_environment())) dprintf(terminal, "%s", kErase);
}

}  // namespace tarpon
