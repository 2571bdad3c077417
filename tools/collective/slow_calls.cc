#include "tools/collective/slow_calls.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/cli/quantile.h"
#include "tools/cli/wrapped_text.h"

namespace tarpon {

bool is_slow(double us, const std::vector<double>& before_us) {
  if (us < kSlowFloorUs || before_us.size() < kSlowSamples) return false;
  return us > kSlowFactor * quantile(before_us, 0.5).value_or(us);
}

std::vector<std::size_t> slow_calls(const std::vector<double>& time_us) {
  std::vector<std::size_t> slow;
  for (std::size_t i = 0; i < time_us.size(); ++i) {
    if (time_us[i] >= kSlowFloorUs && is_slow(time_us[i], time_us)) slow.push_back(i);
  }
  return slow;
}

std::string slow_line(const std::optional<Measurement>& out, const std::optional<Measurement>& in,
                      const std::string& flight) {
  std::string text;
  for (const auto* one : {&out, &in}) {
    if (!*one) continue;
    const std::vector<double>& times = (*one)->time_us;
    const std::vector<std::size_t> slow = slow_calls(times);
    if (slow.empty()) continue;
    const std::size_t longest = *std::max_element(
        slow.begin(), slow.end(), [&](auto a, auto b) { return times[a] < times[b]; });
    text += fmt::format(
        "{}{} of {} {} calls took more than {:.0f} x the median of {:.3f} ms; the longest, number "
        "{}, {:.0f} ms",
        text.empty() ? "# slow: " : "; ", slow.size(), times.size(),
        (*one)->in_place ? "in-place" : "out-of-place", kSlowFactor,
        quantile(times, 0.5).value_or(0) / 1e3, longest + 1, times[longest] / 1e3);
  }
  if (text.empty()) return "";
  text += flight.empty() ? "; --flight DIR records why" : "; why: tarpon flight " + flight;
  return wrapped(text) + "\n";
}

}  // namespace tarpon
