// Calls that are complete, but took far longer than the others: one rank may have stopped in them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/collective/measurement.h"

namespace tarpon {

/// A call is slow if it takes this many times the median of at least kSlowSamples calls, and
/// kSlowFloorUs or longer: shorter ones are the work of a scheduler on a busy host.
inline constexpr double kSlowFactor = 10;
inline constexpr double kSlowFloorUs = 100'000;
inline constexpr std::size_t kSlowSamples = 5;

/// The indexes of the slow calls of `time_us`.
std::vector<std::size_t> slow_calls(const std::vector<double>& time_us);

/// Whether a call of `us` is slow beside the calls before it.
bool is_slow(double us, const std::vector<double>& before_us);

/// "# slow: ...", of the calls out of place and in place; names the longest one, and `flight`, the
/// directory of the recordings, unless that is empty. Empty if no call is slow.
std::string slow_line(const std::optional<Measurement>& out, const std::optional<Measurement>& in,
                      const std::string& flight);

}  // namespace tarpon
