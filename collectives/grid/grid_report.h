// The report of a call of a grid, put together from those of its parts.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/allreduce.h"
#include "collectives/grid/grid_parts.h"

namespace tarpon::grid {

/// Why all calls of this rank end without a result: an abort, or its host is out of the grid.
struct Ending {
  Status status = Status::aborted;
  std::vector<Rank> blamed = {};
  std::string detail = {};
};

/// One thread at a time.
class GridReport {
 public:
  /// `parts` outlives it. `empty`: what the call is. `slice`: elements of this rank's slice of the
  /// bucket.
  GridReport(const GridParts& parts, Report empty, std::uint64_t slice);

  /// Adds the report of a call on the rail that has ended with a result, of `elements` elements of
  /// this rank's slice.
  void add(const Report& rail, std::uint64_t elements);

  /// A part of the call has ended without a result: `report` has its ranks and its text in numbers
  /// of `ranks`. The first failure counts.
  void fail(const Report& report, const std::vector<Rank>& ranks, CallStage stage);
  void fail(Status status, AbortReason reason, const std::vector<Rank>& blamed, std::string detail);
  /// If a rank has given the call up, this is why.
  void blame(const Ending& ending);
  void fail(const Ending& ending) {
    fail(ending.status, AbortReason::given_up, ending.blamed, ending.detail);
  }
  bool has_failed() const { return failed_; }

  const Report& report() const { return report_; }
  /// The end, `elapsed` after the submission.
  void finish(Duration elapsed);

 private:
  std::vector<Rank> of_hosts(const std::vector<Rank>& hosts) const;

  const GridParts& parts_;
  const std::uint64_t slice_;
  Report report_;
  bool failed_ = false;
};

}  // namespace tarpon::grid
