// Reports the contributions in the result of a bounded AllReduce, and the late ranks: by range, by
// rank and in total.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include "collectives/engine/tar_call.h"
#include "transport/rank_mask.h"

namespace tarpon {

/// Length of the bucket in the unit of runs: elements of the bucket, or of the coded one.
std::uint64_t TarCall::positions() const {
  return coding_ ? coding_->layout().coded_count() : call_->arguments.count;
}

/// Lists the contributors of all positions, in their order. Neighbours with the same contributors
/// are one run.
void TarCall::list_runs() {
  struct Shard {
    Range bytes;
    const ContributorMasks* contributors;
  };
  const ContributorMasks nobody(reducer_.slots(), 0);
  std::vector<Shard> shards{{shards_.own, &(late_self_ ? nobody : reducer_.contributors())}};
  for (std::size_t i = 0; i < gather_.size(); ++i) {
    shards.push_back({shards_.others[i].range, &gather_[i].contributors()});
  }
  std::sort(shards.begin(), shards.end(),
            [](const Shard& a, const Shard& b) { return a.bytes.first < b.bytes.first; });
  std::vector<ContributorRun>& runs = call_->report.runs;
  std::uint64_t next = 0;
  const auto append = [&runs, &next](std::uint64_t count, std::uint64_t contributors) {
    if (runs.empty() || runs.back().contributors != contributors) {
      runs.push_back({next, 0, contributors});
    }
    runs.back().count += count;
    next += count;
  };
  if (coding_) {  // slots are rows, dealt out to the shards in turn
    for (std::uint64_t row = 0; row < coding_->layout().rows(); ++row) {
      const Shard& shard = shards[row % shards.size()];
      append(coding_->layout().row_elements(), (*shard.contributors)[row / shards.size()]);
    }
    return;
  }
  const std::uint64_t width = element_bytes(call_->arguments.type);
  for (const Shard& shard : shards) {
    for (std::uint32_t slot = 0; slot < shard.contributors->size(); ++slot) {
      append(slot_length(shard.bytes.count, slot_bytes(), slot) / width,
             (*shard.contributors)[slot]);
    }
  }
}

std::uint64_t TarCall::all_ranks() const {
  return first_ranks(setting_.world);
}

/// Whether every contribution has arrived.
bool TarCall::whole() const {
  if (late_self_) return false;
  const auto full = [all = all_ranks()](const ContributorMasks& contributors) {
    return std::all_of(contributors.begin(), contributors.end(),
                       [all](std::uint64_t here) { return here == all; });
  };
  return full(reducer_.contributors()) &&
         std::all_of(gather_.begin(), gather_.end(),
                     [&full](const BufferSink& sink) { return full(sink.contributors()); });
}

/// Whether no data of `rank` has arrived here. Missing contributions alone do not prove it: a
/// result whose owner is lost lacks the contributions of ranks that were in time.
bool TarCall::silent(Rank rank) const {
  if (rank == setting_.rank) return late_self_;
  const MessageProgress scatter = endpoint_.progress(handle(), kScatter, rank);
  const MessageProgress gather = endpoint_.progress(handle(), kGather, rank);
  if (scatter.slots + gather.slots == 0) {
    // It has nothing to send here. If no owner's data is here either, nothing is known of it.
    const std::vector<ContributorRun>& runs = call_->report.runs;
    return !scatter.heard && std::any_of(runs.begin(), runs.end(), [](const ContributorRun& run) {
      return run.contributors != 0;
    });
  }
  return scatter.received + gather.received == 0;
}

/// Reports the contributors to each whole shard, and the void shards.
void TarCall::report_shards() {
  Report& report = call_->report;
  const auto common = [](const ContributorMasks& contributors, std::uint64_t all) {
    return std::accumulate(contributors.begin(), contributors.end(), all,
                           std::bit_and<std::uint64_t>());
  };
  const bool own_void = late_self_ && shards_.own.count > 0;
  std::uint64_t& own = report.peers[setting_.rank].contributors;
  own = own_void ? 0 : common(reducer_.contributors(), own);
  const std::vector<TarShards::Shard>& others = shards_.others;
  for (std::size_t i = 0; i < others.size(); ++i) {
    PeerReport& owner = report.peers[others[i].owner];
    owner.contributors = common(gather_[i].contributors(), owner.contributors);
    if (late_self_) report.bytes_fetched += owner.bytes_received[kGather];
  }
  for (Rank rank = 0; rank < setting_.world; ++rank) {
    const PeerReport& peer = report.peers[rank];
    const bool nothing = peer.bytes_expected[kGather] > 0 && peer.bytes_received[kGather] == 0;
    if (rank == setting_.rank ? own_void : nothing) report.void_shards.push_back(rank);
  }
}

/// Elements of a slot of a shard of `bytes`.
double TarCall::slot_elements(std::uint64_t bytes, std::uint32_t slot) const {
  return static_cast<double>(slot_length(bytes, slot_bytes(), slot) /
                             element_bytes(call_->arguments.type));
}

/// Adds the missing elements of this rank's shard to `sums`. `late`: mask of live ranks.
void TarCall::count_losses_of_own_shard(std::uint64_t late, LossCauses& sums) const {
  // Where the messages to this rank ended: a contribution beyond is cut, one below is lost.
  std::vector<std::pair<std::uint32_t, Rank>> ends;
  for (const TarShards::Shard& other : shards_.others) {
    ends.emplace_back(endpoint_.progress(handle(), kScatter, other.owner).end, other.owner);
  }
  std::sort(ends.begin(), ends.end());
  auto end = ends.begin();
  std::uint64_t ended = 0;
  for (std::uint32_t slot = 0; slot < reducer_.slots(); ++slot) {
    for (; end != ends.end() && end->first <= slot; ++end) ended |= bit(end->second);
    const std::uint64_t lacked = all_ranks() & ~reducer_.contributors()[slot];
    if (lacked == 0) continue;
    const double elements = slot_elements(shards_.own.count, slot);
    const std::uint64_t missing = lacked & ~gone_;
    sums.gone += std::popcount(lacked & gone_) * elements;
    sums.late_ranks += std::popcount(missing & late) * elements;
    sums.cut += std::popcount(missing & ~late & ended) * elements;
    sums.network += std::popcount(missing & ~late & ~ended) * elements;
  }
}

/// Returns the ranks that contributed to no slot of a shard; 0 where packets may have been lost
/// instead, since the shard has few slots. An owner that waits for live ranks closes without such a
/// rank only if the rank was silent at that owner. `contributors`: of the shard's slots.
std::uint64_t TarCall::absent_at_owner(const ContributorMasks& contributors) const {
  constexpr std::ptrdiff_t kManySlots = 8;
  if (!waits_for_live_) return 0;
  const auto nothing = std::count(contributors.begin(), contributors.end(), 0u);
  if (std::ssize(contributors) - nothing < kManySlots) return 0;
  return all_ranks() & ~std::accumulate(contributors.begin(), contributors.end(), std::uint64_t{0},
                                        std::bit_or<std::uint64_t>());
}

/// Adds the missing elements of the shard `number`, which another rank owns, to `sums`.
/// Contributions that a slot lacks were missing at its owner. `late`, `void_owners`: masks of
/// live ranks, and of ranks.
void TarCall::count_losses_of(std::size_t number, std::uint64_t late, std::uint64_t void_owners,
                              LossCauses& sums) const {
  const TarShards::Shard& shard = shards_.others[number];
  const std::uint32_t end = endpoint_.progress(handle(), kGather, shard.owner).end;
  const bool is_void = (void_owners & bit(shard.owner)) != 0;
  const bool owner_gone = (gone_ & bit(shard.owner)) != 0;
  const ContributorMasks& contributors = gather_[number].contributors();
  late |= absent_at_owner(contributors) & ~gone_;
  for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
    const std::uint64_t lacked = all_ranks() & ~contributors[slot];
    if (lacked == 0) continue;
    const double elements = slot_elements(shard.range.count, slot);
    if (contributors[slot] == 0) {
      (owner_gone   ? sums.gone
       : is_void    ? sums.void_shards
       : slot < end ? sums.network
                    : sums.cut) += setting_.world * elements;
    } else {
      const std::uint64_t missing = lacked & ~gone_;
      sums.gone += std::popcount(lacked & gone_) * elements;
      sums.late_ranks += std::popcount(missing & late) * elements;
      sums.at_owner += std::popcount(missing & ~late) * elements;
    }
  }
}

/// Reports why contributions are missing. This rank knows it for messages to itself.
void TarCall::report_causes() {
  const std::uint64_t late = mask_of(call_->report.late_ranks) & ~gone_;
  const std::uint64_t void_owners = mask_of(call_->report.void_shards);
  LossCauses sums;  // in elements
  if (late_self_) {
    sums.void_shards += setting_.world * static_cast<double>(shards_.own.count /
                                                             element_bytes(call_->arguments.type));
  } else {
    count_losses_of_own_shard(late, sums);
  }
  // The others closed without a rank whose shard is void. What they lack of it, it owed too late.
  const std::uint64_t behind = late | (void_owners & ~gone_);
  for (std::size_t i = 0; i < gather_.size(); ++i) count_losses_of(i, behind, void_owners, sums);
  const double all = static_cast<double>(positions()) * setting_.world;
  call_->report.causes = {sums.cut / all,        sums.network / all,     sums.at_owner / all,
                          sums.late_ranks / all, sums.void_shards / all, sums.gone / all};
}

void TarCall::report_loss() {
  if (whole()) return;
  Report& report = call_->report;
  list_runs();
  report.missing.assign(setting_.world, 0);
  std::uint64_t stage1 = 0;
  std::uint64_t stage2 = 0;
  for (const ContributorRun& run : report.runs) {
    const std::uint64_t missing = all_ranks() & ~run.contributors;
    for (std::uint64_t rest = missing; rest != 0; rest &= rest - 1) {
      report.missing[static_cast<std::size_t>(std::countr_zero(rest))] += run.count;
    }
    (run.contributors == 0 ? stage2 : stage1) +=
        static_cast<std::uint64_t>(std::popcount(missing)) * run.count;
  }
  if (stage1 + stage2 == 0) {
    report.missing.clear();
    report.runs.clear();
    if (!late_self_) return;
    // Late without a shard of its own, or in a call of no elements.
    report.status = Status::late_self;
    report.detail = "a peer had ended the call before; nothing is missing";
    return report_shards();
  }
  const double all = static_cast<double>(positions()) * static_cast<double>(setting_.world);
  report.lost_stage1 = static_cast<double>(stage1) / all;
  report.lost_stage2 = static_cast<double>(stage2) / all;
  report.lost_fraction = static_cast<double>(stage1 + stage2) / all;
  for (Rank rank = 0; rank < setting_.world; ++rank) {
    if (report.missing[rank] == positions() && silent(rank)) {
      report.late_ranks.push_back(rank);
    }
  }
  report.status = late_self_ ? Status::late_self : Status::partial;
  report_shards();
  report_causes();
  report.detail = fmt::format(
      "{:.4f} % of the contributions are missing ({:.4f} % in stage 1, "
      "{:.4f} % in stage 2)",
      report.lost_fraction * 100, report.lost_stage1 * 100, report.lost_stage2 * 100);
}

}  // namespace tarpon
