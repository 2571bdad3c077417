// How the ranks of a communicator are numbered in its job.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "transport/rank.h"
#include "transport/rank_mask.h"

namespace tarpon {

/// A value. All functions take constant time.
class RankMap {
 public:
  /// Rank i of the communicator is rank members[i] of the job.
  /// REQUIRES: `members` are different, and below kMaskRanks.
  explicit RankMap(std::vector<Rank> members) : members_(std::move(members)) {
    own_.fill(kUnknownRank);
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      own_[members_[rank]] = static_cast<Rank>(rank);
    }
  }

  /// The map of a job itself. REQUIRES: world_size <= kMaskRanks.
  static RankMap of_job(std::uint32_t world_size) {
    std::vector<Rank> ranks(world_size);
    std::iota(ranks.begin(), ranks.end(), Rank{0});
    return RankMap(std::move(ranks));
  }

  /// The ranks of the job, by rank of the communicator.
  const std::vector<Rank>& members() const { return members_; }

  /// The job's number of `own`. REQUIRES: `own` is a rank of the communicator.
  Rank in_job(Rank own) const { return members_[own]; }

  /// The communicator's number of `in_job`; kUnknownRank: it is not a member.
  Rank own(Rank in_job) const { return in_job < own_.size() ? own_[in_job] : kUnknownRank; }

 private:
  std::vector<Rank> members_;
  std::array<Rank, kMaskRanks> own_{};
};

}  // namespace tarpon
