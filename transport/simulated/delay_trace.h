// Delays measured elsewhere, replayed: a CSV file of (time, rank, extra delay).
#pragma once

#include <string_view>
#include <vector>

#include "transport/port.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

/// From `time` on, until the next sample for the same rank, packets from `rank` take `delay`
/// longer. Samples for kUnknownRank hold for all ranks and add to a rank's own.
struct DelaySample {
  Time time;
  Rank rank = kUnknownRank;
  Duration delay{};
  bool operator==(const DelaySample&) const = default;
};

/// Reads `text`: a line "time_us,rank,delay_us", then one line per sample, whole numbers; rank `*`:
/// all. Empty lines are skipped. Errors: invalid_argument, with `name` and the line's number.
Result<std::vector<DelaySample>> parse_delay_trace(std::string_view text, std::string_view name);

/// The delay that a trace gives a rank, asked at times that never go back. Single-threaded.
class DelayTrace {
 public:
  /// `samples` in any order; of two for one time and rank the later one counts.
  DelayTrace(std::vector<DelaySample> samples, std::uint32_t ranks);

  Duration at(Time now, Rank rank);

 private:
  std::vector<DelaySample> samples_;  // by time
  std::size_t next_ = 0;
  std::vector<Duration> of_rank_;
  Duration of_all_{};
};

}  // namespace tarpon
