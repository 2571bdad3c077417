// Whether two ranks count the part that one sends to the other alike, in an all_to_all with counts.
//
// The signature of such a call has no counts, because they differ from rank to rank. So each rank
// tells each other one, in the terms of READY, how many elements it sends to it and how many it
// takes from it. Counts that differ by a multiple of 2^32 - 1 look alike.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/engine/schedules/collective_parts.h"
#include "transport/operation_view.h"

namespace tarpon {

class PairCounts {
 public:
  /// Of rank `rank`. REQUIRES: `parts.by_pair`. `parts` outlives the object.
  PairCounts(const CollectiveParts& parts, Rank rank);

  /// OperationSpec::terms_by_peer.
  std::vector<CallTerms> terms() const;

  struct Difference {
    Rank peer = 0;
    std::string text;
  };
  /// The first difference among the peers whose terms have come since the last look.
  std::optional<Difference> find(const OperationView& operation);

 private:
  const CollectiveParts& parts_;
  std::uint64_t unknown_;  // bit r: the terms of rank r have not come
};

}  // namespace tarpon
