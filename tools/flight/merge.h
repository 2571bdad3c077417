// The recordings of a job's ranks, laid side by side on one time line.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/flight/file.h"
#include "tools/flight/flight_clock.h"
#include "xdp/base/result.h"

namespace tarpon {

struct FlightRank {
  std::optional<FlightDump> dump;  // nothing: the rank left no recording
  ClockShift clock;                // to the job's time axis

  Time at(const Record& record) const { return clock.to_axis(record.time); }
  Time dumped() const { return clock.to_axis(Time(Duration(dump->header.dumped_monotonic))); }
};

struct FlightJob {
  std::uint32_t job = 0;
  std::vector<FlightRank> ranks;  // by rank, all of the job
  std::size_t others = 0;         // recordings of other jobs, left out
};

/// The files, and every *.flight of the directories among `paths`: regular files, at most 4096.
/// Errors: io, invalid_argument.
Result<std::vector<FlightDump>> read_flights(const std::vector<std::string>& paths);

/// Merges the recordings of `job`, or without it of the job with the newest recording. Uses the
/// newest one of each rank. Errors: invalid_argument (none).
Result<FlightJob> merge_flights(std::vector<FlightDump> dumps, std::optional<std::uint32_t> job);

/// What one rank's recording says of one operation.
struct OperationAtRank {
  enum class Presence : std::uint8_t {
    begun,
    never,    // the recording covers its time, and it is not there
    unknown,  // no recording, or it is overwritten, or the recording was made before
  };
  Presence presence = Presence::unknown;
  std::optional<Record> submitted, opened, ended;
  std::array<std::optional<Record>, 4> closed;  // by stage
  std::uint64_t heard = 0;                      // ranks whose first packet it saw
  std::array<std::uint64_t, 4> asked{};         // by stage: ranks it asked for what was missing
  std::optional<Record> abort;                  // the first that came in or went out
  std::optional<Record> nonfinite;
  std::uint64_t lacked = 0;  // ranks whose data was missing in the end

  /// Ranks of `everybody` (bit r: rank r) that it waits for, according to its recording.
  std::uint64_t lacks(std::uint64_t everybody) const;
};

using OperationKey = std::pair<std::uint32_t, std::uint32_t>;  // tag, number

/// Every operation that a recording knows, with one entry per rank.
std::map<OperationKey, std::vector<OperationAtRank>> operations_of(const FlightJob& job);

/// When the first rank began it.
Time begin_of(const FlightJob& job, const std::vector<OperationAtRank>& operation);

}  // namespace tarpon
