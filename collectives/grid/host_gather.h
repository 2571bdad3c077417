// An all_gather among the ranks of a host, for what the parts of a grid tell each other.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "collectives/grid/global_names.h"
#include "collectives/grid/grid_tags.h"
#include "collectives/grid/live_parts.h"

namespace tarpon::grid {

/// Tells `mine` to the ranks of the host within `deadline`. Returns the values of all, by place:
/// bytes of other processes, which the caller checks. Errors: those of the call; unavailable, in a
/// text of the job, if it was not complete.
template <typename T>
Result<std::vector<T>> gather_in_host(const LiveParts& parts, const T& mine, Duration deadline) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(parts.layout.places());
  const auto report = parts.host_job->collective({.collective = Collective::all_gather,
                                                  .input = &mine,
                                                  .output = all.data(),
                                                  .count = sizeof mine,
                                                  .type = DataType::uint8,
                                                  .tag = gather_tag(kGridAgreementTag),
                                                  .deadline = std::max<Duration>(deadline, 1ms)});
  if (!report) return fail(report.error());
  if (report->status != Status::complete) {
    return fail(Error::Code::unavailable, global_text(report->detail, parts.host_ranks()));
  }
  return all;
}

}  // namespace tarpon::grid
