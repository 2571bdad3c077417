// Which elements each rank owns in a call that is not coded: a shard of the bucket, or, over hosts,
// a shard of a slice.
//
// A value.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "collectives/engine/schedules/host_plan.h"
#include "collectives/engine/schedules/tar_shards.h"
#include "tools/simulation/simulated_call.h"
#include "transport/rank_mask.h"

namespace tarpon {

class OwnedParts {
 public:
  /// `by_hosts`: a bounded call over hosts. `turn`: by which ownership rotates.
  OwnedParts(const SimulationPlan& plan, const AllreduceArguments& arguments, std::uint32_t turn,
             bool by_hosts)
      : layout_(by_hosts ? plan.layout() : hosts::HostLayout{}) {
    if (by_hosts) plan_.emplace(arguments, layout_, plan.host_shape(), plan.slot_bytes);
    for (Rank rank = 0; rank < plan.ranks; ++rank) {
      shards_.push_back(by_hosts ? hosted_shard(rank, turn)
                                 : tar_shards(plan.ranks, rank, turn, arguments.count,
                                              element_bytes(arguments.type), arguments.shares)
                                       .own);
    }
  }

  bool by_hosts() const { return plan_.has_value(); }
  Range shard(Rank owner) const { return shards_[owner]; }

  // -- over hosts

  /// The slice of which `rank` owns a shard; empty if it owns none.
  Range slice(Rank rank) const {
    const std::uint32_t local = place(rank);
    return local < plan_->owners() ? plan_->slice(local) : Range{};
  }
  bool share_host(Rank a, Rank b) const { return layout_.host_of(a) == layout_.host_of(b); }
  /// Whether the ranks own shards of one slice.
  bool share_slice(Rank a, Rank b) const {
    return place(a) == place(b) && place(a) < plan_->owners();
  }
  /// Ranks on the host of `rank`. Bit r: rank r.
  std::uint64_t host_of(Rank rank) const { return mask_of(layout_.hosts[layout_.host_of(rank)]); }

 private:
  /// The local rank.
  std::uint32_t place(Rank rank) const {
    const std::vector<Rank>& ranks = layout_.hosts[layout_.host_of(rank)];
    return static_cast<std::uint32_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  Range hosted_shard(Rank rank, std::uint32_t turn) const {
    if (place(rank) >= plan_->owners()) return {};
    const auto host = static_cast<Rank>(layout_.host_of(rank));
    return plan_->shard(place(rank), shard_of(host, turn, plan_->hosts()));
  }

  hosts::HostLayout layout_;
  std::optional<HostPlan> plan_;  // over hosts
  std::vector<Range> shards_;     // by rank
};

}  // namespace tarpon
