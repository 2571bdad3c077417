#include "collectives/engine/bounded/parts_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "transport/rank_mask.h"

namespace tarpon {

/// Lists the contributors of all elements, in the order of the parts. Neighbours with the same
/// contributors are one run.
void PartsAccount::list_runs() {
  const std::uint64_t width = call_.layout.element_bytes();
  const std::vector<TarShards::Shard>& others = call_.layout.shards().others;
  for (Rank rank = 0; rank < call_.world; ++rank) {
    if (rank == call_.rank) {
      append(call_.layout.shards().own.count / width, bit(rank));
      continue;
    }
    // The others begin with the next rank.
    const std::size_t number = (rank + call_.world - call_.rank - 1u) % call_.world;
    const std::uint64_t bytes = others[number].range.count;
    const ContributorMasks& contributors = call_.parts[number].contributors();
    for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
      append(call_.layout.length_of(bytes, slot) / width, contributors[slot]);
    }
  }
}

void PartsAccount::append(std::uint64_t elements, std::uint64_t contributors) {
  if (elements == 0) return;
  std::vector<ContributorRun>& runs = report_.runs;
  if (runs.empty() || runs.back().contributors != contributors) {
    runs.push_back({next_, 0, contributors});
  }
  runs.back().count += elements;
  next_ += elements;
}

/// Adds the missing elements of the part `number` of the layout's other shards.
void PartsAccount::count_part(std::size_t number, LossCauses& sums) {
  const auto& [owner, range] = call_.layout.shards().others[number];
  const MessageProgress message = call_.endpoint.view(call_.handle).progress(kScatter, owner);
  const ContributorMasks& contributors = call_.parts[number].contributors();
  const bool gone = (call_.gone & bit(owner)) != 0;
  const bool nothing = message.received == 0;
  std::uint64_t missing = 0;
  for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
    if (contributors[slot] != 0) continue;
    const std::uint64_t elements =
        call_.layout.length_of(range.count, slot) / call_.layout.element_bytes();
    missing += elements;
    (gone                 ? sums.gone
     : nothing            ? sums.late_ranks
     : slot < message.end ? sums.network
                          : sums.cut) += static_cast<double>(elements);
  }
  if (missing == 0) return;
  missing_ += missing;
  report_.missing[owner] = missing;
  report_.peers[owner].contributors = 0;
  if (!nothing) return;
  report_.void_shards.push_back(owner);
  if (gone || !call_.late_self) report_.late_ranks.push_back(owner);
}

void PartsAccount::count_losses() {
  LossCauses sums;  // in elements
  report_.missing.assign(call_.world, 0);
  for (std::size_t i = 0; i < call_.parts.size(); ++i) count_part(i, sums);
  if (missing_ == 0) return report_.missing.clear();
  const double all = static_cast<double>(call_.layout.positions());
  report_.lost_fraction = report_.lost_stage1 = static_cast<double>(missing_) / all;
  report_.causes = {sums.cut / all, sums.network / all, 0, sums.late_ranks / all, 0,
                    sums.gone / all};
}

void PartsAccount::fill() {
  for (Rank rank = 0; rank < call_.world; ++rank) report_.peers[rank].contributors = bit(rank);
  count_losses();
  if (call_.late_self) {
    report_.status = Status::late_self;
    report_.late_ranks.push_back(call_.rank);
    report_.detail = "a peer had ended the call before; nothing is missing";
  }
  std::sort(report_.late_ranks.begin(), report_.late_ranks.end());
  std::sort(report_.void_shards.begin(), report_.void_shards.end());
  if (missing_ == 0) return;
  list_runs();
  if (!call_.late_self) report_.status = Status::partial;
  report_.detail = fmt::format("{:.4f} % of the elements are missing, and left as they were",
                               report_.lost_fraction * 100);
}

}  // namespace tarpon
