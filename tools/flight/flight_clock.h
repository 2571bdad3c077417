// Lays the clocks of a job's ranks onto one time axis.
//
// Ranks of one boot of one host share the monotonic clock, unless they are in different time
// namespaces. Between two clocks, pairs of events bound the difference: what a rank sends, its
// peer receives later. Pairs in both directions bound it from both sides; the axis takes the
// middle, and pairs from two parts of the recordings give the drift.
#pragma once

#include <vector>

#include "collectives/flight/file.h"

namespace tarpon {

/// How a rank's clock was laid onto the axis, which is the clock of the lowest recorded rank.
enum class FlightClock : std::uint8_t {
  shared,     // the same boot and time namespace: the same clock
  estimated,  // from packets both ways
  unrelated,  // no packets both ways: its times begin with the axis's first event
};

/// From a rank's clock to the axis.
struct ClockShift {
  FlightClock clock = FlightClock::shared;
  Duration shift{};        // at `at`
  Duration uncertainty{};  // the shift is at most this far off
  Time at{};               // of the rank's own clock
  double drift = 0;        // change of the shift per time

  Time to_axis(Time local) const;
};

/// One entry per dump, in their order. The first dump's clock is the axis.
std::vector<ClockShift> align_clocks(const std::vector<const FlightDump*>& dumps);

}  // namespace tarpon
