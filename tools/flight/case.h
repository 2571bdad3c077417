// One operation that went wrong, and what every recording shows of it, on the job's time axis.
//
// The rules (flight_rules.h) read nothing else.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/membership/facts.h"
#include "tools/flight/merge.h"

namespace tarpon {

using FlightOperations = std::map<OperationKey, std::vector<OperationAtRank>>;

/// In rising order of weight.
enum class FlightTrouble : std::uint8_t {
  none,
  slow,       // complete on all ranks, but far slower than other calls alike
  nonfinite,  // NaN in the result
  partial,    // contributions are missing, or a rank was late
  open,       // no rank has failed, but ranks have been in it for long
  failed,     // a rank ended it without a result
};

/// Nothing drove a rank's running calls.
struct FlightPause {
  Time from, to;
  Duration overdue;  // the part of the pause after the time for which a wake-up was due
};

/// `by` learned that a rank is no longer live.
struct FlightStanding {
  Rank by;
  Standing standing;
  Time at;
};

/// A rank's own host refused to send packets.
struct FlightRefusal {
  Time at;  // up to SendRefusals::kInterval after the packets
  int error = 0;
  std::uint32_t packets = 0;
};

/// One rank in the operation. Times are on the axis.
struct FlightWitness {
  bool known = false;   // its recording covers the operation
  bool placed = false;  // and its times compare with those of other ranks
  const OperationAtRank* at = nullptr;
  std::optional<Time> submitted, opened, ended;
  Time until{};                          // end of its call, or else of its recording
  std::uint64_t lacks = 0;               // ranks that it waited for in the end
  std::optional<OperationKey> previous;  // the last call that it ended before it made this one
  std::optional<Time> previous_end;
  Duration usual_delay{};           // longest delay of its call after the first rank's, before
  std::vector<FlightPause> pauses;  // in time
  std::vector<FlightStanding> standings;  // what others learned about this rank
  std::vector<FlightRefusal> refusals;    // in time
};

class FlightCase {
 public:
  /// `job` and `operations` outlive it. REQUIRES: `key` is in `operations`.
  FlightCase(const FlightJob& job, const FlightOperations& operations, const OperationKey& key,
             FlightTrouble trouble);

  const FlightJob& job() const { return job_; }
  const OperationKey& key() const { return key_; }
  FlightTrouble trouble() const { return trouble_; }
  std::size_t size() const { return witnesses_.size(); }
  const FlightWitness& operator[](std::size_t rank) const { return witnesses_[rank]; }

  /// The operation's time: from the first rank's call to the first failure, or, while it is open,
  /// to the last recording.
  Time begin() const { return begin_; }
  Time failed() const { return failed_; }
  Duration window() const { return failed_ - begin_; }
  /// Whether the first failure is one of time: a deadline or a bound, not a death, an abort or a
  /// mismatch.
  bool ran_out_of_time() const { return ran_out_of_time_; }
  /// The tolerance with which times of two ranks compare.
  Duration tolerance() const { return tolerance_; }

  /// The records that `rank` has of this operation with `peer`.
  std::vector<Record> records_with(Rank rank, Rank peer) const;
  /// How long before its end `rank` had last heard `peer`; nothing: not recorded.
  std::optional<Duration> unheard_for(Rank rank, Rank peer) const;
  /// Whether a rank that failed waited for `rank`, or for a rank that waited for it, and so on.
  bool was_awaited(Rank rank) const;
  /// Whether a rank has heard `rank` in the operation.
  bool was_heard(Rank rank) const;

 private:
  void witness(const FlightOperations& operations, std::size_t rank);
  void note_rank_wide(std::size_t rank);
  void find_window();

  const FlightJob& job_;
  const OperationKey key_;
  const FlightTrouble trouble_;
  std::vector<FlightWitness> witnesses_;
  Time begin_ = kNever, failed_ = kNever;
  Duration tolerance_{};
  bool ran_out_of_time_ = true;
};

/// Whether a call with this status has no result.
bool is_failure(Status status);

/// Whether a signal other than SIGTERM, with which launchers end ranks, ended this rank.
bool died_of_signal(const FlightRank& rank);

double to_ms(Duration duration);

}  // namespace tarpon
