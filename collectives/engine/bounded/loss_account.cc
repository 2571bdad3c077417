#include "collectives/engine/bounded/loss_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include "transport/rank_mask.h"

namespace tarpon {

LossAccount::LossAccount(const Call& call, Report& report)
    : call_(call), all_ranks_(first_ranks(call.world)), report_(report) {}

/// Lists the contributors of all positions, in their order. Neighbours with the same contributors
/// are one run.
void LossAccount::list_runs() {
  struct Shard {
    Range bytes;
    const ContributorMasks* contributors;
  };
  const ContributorMasks nobody(call_.reducer.slots(), 0);
  std::vector<Shard> shards{
      {call_.layout.shards().own, &(call_.late_self ? nobody : call_.reducer.contributors())}};
  for (std::size_t i = 0; i < call_.gather.size(); ++i) {
    shards.push_back({call_.layout.shards().others[i].range, &call_.gather[i].contributors()});
  }
  std::sort(shards.begin(), shards.end(),
            [](const Shard& a, const Shard& b) { return a.bytes.first < b.bytes.first; });
  std::vector<ContributorRun>& runs = report_.runs;
  std::uint64_t next = 0;
  const auto append = [&runs, &next](std::uint64_t count, std::uint64_t contributors) {
    if (runs.empty() || runs.back().contributors != contributors) {
      runs.push_back({next, 0, contributors});
    }
    runs.back().count += count;
    next += count;
  };
  if (call_.coded != nullptr) {  // slots are rows, dealt out to the shards in turn
    for (std::uint64_t row = 0; row < call_.coded->rows(); ++row) {
      const Shard& shard = shards[row % shards.size()];
      append(call_.coded->row_elements(), (*shard.contributors)[row / shards.size()]);
    }
    return;
  }
  const std::uint64_t width = call_.layout.element_bytes();
  for (const Shard& shard : shards) {
    for (std::uint32_t slot = 0; slot < shard.contributors->size(); ++slot) {
      append(call_.layout.length_of(shard.bytes.count, slot) / width, (*shard.contributors)[slot]);
    }
  }
}

/// Whether every contribution has arrived.
bool LossAccount::is_whole() const {
  if (call_.late_self) return false;
  const auto full = [all = all_ranks_](const ContributorMasks& contributors) {
    return std::all_of(contributors.begin(), contributors.end(),
                       [all](std::uint64_t here) { return here == all; });
  };
  return full(call_.reducer.contributors()) &&
         std::all_of(call_.gather.begin(), call_.gather.end(),
                     [&full](const BufferSink& sink) { return full(sink.contributors()); });
}

/// Whether no data of `rank` has arrived here. Missing contributions alone do not prove it: a
/// result whose owner is lost lacks the contributions of ranks that were in time.
bool LossAccount::is_silent(Rank rank) const {
  if (rank == call_.rank) return call_.late_self;
  if ((lost_with_others() & bit(rank)) != 0) return false;
  const MessageProgress scatter = call_.endpoint.view(call_.handle).progress(kScatter, rank);
  const bool absent = (call_.gone & bit(rank)) != 0 || !scatter.heard;
  if ((call_.left_out & bit(rank)) != 0 && absent) return true;
  const MessageProgress gather = call_.endpoint.view(call_.handle).progress(kGather, rank);
  if (scatter.slots + gather.slots == 0) {
    // It has nothing to send here. If no owner's data is here either, nothing is known of it.
    const std::vector<ContributorRun>& runs = report_.runs;
    return !scatter.heard && std::any_of(runs.begin(), runs.end(), [](const ContributorRun& run) {
      return run.contributors != 0;
    });
  }
  return scatter.received + gather.received == 0;
}

/// The ranks whose contributions are lost because other ranks are gone, which carried them.
std::uint64_t LossAccount::lost_with_others() const {
  std::uint64_t lost = call_.layout.lost_with(call_.gone);
  for (std::size_t i = 0; i < call_.gather.size(); ++i) {
    lost |= call_.layout.lost_with(call_.gone, i);
  }
  return lost & ~call_.gone;
}

/// Reports the contributors to each whole shard, and the void shards.
void LossAccount::report_shards() {
  const auto common = [](const ContributorMasks& contributors, std::uint64_t all) {
    return std::accumulate(contributors.begin(), contributors.end(), all,
                           std::bit_and<std::uint64_t>());
  };
  const bool own_void = call_.late_self && call_.layout.shards().own.count > 0;
  std::uint64_t& own = report_.peers[call_.rank].contributors;
  own = own_void ? 0 : common(call_.reducer.contributors(), own);
  const std::vector<TarShards::Shard>& others = call_.layout.shards().others;
  for (std::size_t i = 0; i < call_.gather.size(); ++i) {
    PeerReport& owner = report_.peers[others[i].owner];
    owner.contributors = common(call_.gather[i].contributors(), owner.contributors);
    if (call_.late_self) report_.bytes_fetched += owner.bytes_received[kGather];
  }
  std::uint64_t empty = own_void ? bit(call_.rank) : 0;
  for (std::size_t i = 0; i < call_.gather.size(); ++i) {
    const ContributorMasks& contributors = call_.gather[i].contributors();
    const bool nothing = std::all_of(contributors.begin(), contributors.end(),
                                     [](std::uint64_t here) { return here == 0; });
    if (nothing && !contributors.empty()) empty |= bit(others[i].owner);
  }
  report_.void_shards = ranks_of(empty);
}

/// Elements of a slot of a shard of `bytes`.
double LossAccount::slot_elements(std::uint64_t bytes, std::uint32_t slot) const {
  return static_cast<double>(call_.layout.length_of(bytes, slot) / call_.layout.element_bytes());
}

/// Adds the missing elements of this rank's shard to `sums`. `late`: mask of live ranks.
void LossAccount::count_own_shard(std::uint64_t late, LossCauses& sums) const {
  // Where the messages to this rank ended: a contribution beyond is cut, one below is lost.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> ends;  // and the ranks that they carry
  for (const TarShards::Shard& other : call_.layout.shards().others) {
    if (!call_.layout.is_partner(other.owner)) continue;
    ends.emplace_back(call_.endpoint.view(call_.handle).progress(kScatter, other.owner).end,
                      call_.layout.carried_by(other.owner));
  }
  std::sort(ends.begin(), ends.end());
  auto end = ends.begin();
  std::uint64_t ended = 0;
  const std::uint64_t live = late;
  const std::uint64_t gone = call_.layout.lost_with(call_.gone);
  for (std::uint32_t slot = 0; slot < call_.reducer.slots(); ++slot) {
    for (; end != ends.end() && end->first <= slot; ++end) ended |= end->second;
    const std::uint64_t here = call_.reducer.contributors()[slot];
    const std::uint64_t lacked = all_ranks_ & ~here;
    if (lacked == 0) continue;
    // The slot came, without ranks that were late at their host.
    late = live | (call_.layout.carried_by(call_.rank) & ~bit(call_.rank));
    for (const auto& [_, carried] : ends) late |= (here & carried) != 0 ? carried : 0;
    const double elements = slot_elements(call_.layout.shards().own.count, slot);
    const std::uint64_t missing = lacked & ~gone;
    sums.gone += std::popcount(lacked & gone) * elements;
    sums.late_ranks += std::popcount(missing & late) * elements;
    sums.cut += std::popcount(missing & ~late & ended) * elements;
    sums.network += std::popcount(missing & ~late & ~ended) * elements;
  }
}

/// Returns the ranks that contributed to no slot of a shard; 0 where packets may have been lost
/// instead, since the shard has few slots. An owner that waits for live ranks closes without such a
/// rank only if the rank was silent at that owner. `contributors`: of the shard's slots.
std::uint64_t LossAccount::absent_at_owner(const ContributorMasks& contributors) const {
  constexpr std::ptrdiff_t kManySlots = 8;
  if (!call_.waits_for_live) return 0;
  const auto nothing = std::count(contributors.begin(), contributors.end(), 0u);
  if (std::ssize(contributors) - nothing < kManySlots) return 0;
  return all_ranks_ & ~std::accumulate(contributors.begin(), contributors.end(), std::uint64_t{0},
                                       std::bit_or<std::uint64_t>());
}

/// Adds the missing elements of the shard `number`, which another rank owns, to `sums`.
/// Contributions that a slot lacks were missing at its owner. `late`, `void_owners`: masks of
/// live ranks, and of ranks.
void LossAccount::count_shard(std::size_t number, std::uint64_t late, std::uint64_t void_owners,
                              LossCauses& sums) const {
  const TarShards::Shard& shard = call_.layout.shards().others[number];
  const std::uint32_t end = call_.endpoint.view(call_.handle).progress(kGather, shard.owner).end;
  const bool is_void = (void_owners & bit(shard.owner)) != 0;
  const bool near = !call_.layout.is_partner(shard.owner);  // it does not come by packets
  const std::uint64_t gone = call_.layout.lost_with(call_.gone, number);
  const std::uint64_t sources = bit(shard.owner) | bit(call_.layout.provider(number));
  const bool owner_gone = (call_.gone & sources) != 0;
  const ContributorMasks& contributors = call_.gather[number].contributors();
  late |= absent_at_owner(contributors) & ~call_.gone;
  for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
    const std::uint64_t lacked = all_ranks_ & ~contributors[slot];
    if (lacked == 0) continue;
    const double elements = slot_elements(shard.range.count, slot);
    if (contributors[slot] == 0) {
      (owner_gone   ? sums.gone
       : near       ? sums.at_owner
       : is_void    ? sums.void_shards
       : slot < end ? sums.network
                    : sums.cut) += call_.world * elements;
    } else {
      const std::uint64_t missing = lacked & ~gone;
      sums.gone += std::popcount(lacked & gone) * elements;
      sums.late_ranks += std::popcount(missing & late) * elements;
      sums.at_owner += std::popcount(missing & ~late) * elements;
    }
  }
}

/// Reports why contributions are missing. This rank knows it for messages to itself. `silent`: mask
/// of the ranks without data in the result.
void LossAccount::report_causes(std::uint64_t silent) {
  const std::uint64_t late = silent & ~call_.gone;
  const std::uint64_t void_owners =
      mask_of(report_.void_shards) & (call_.layout.partners() | bit(call_.rank));
  LossCauses sums;  // in elements
  if (call_.late_self) {
    sums.void_shards += call_.world * static_cast<double>(call_.layout.shards().own.count /
                                                          call_.layout.element_bytes());
  } else {
    count_own_shard(late, sums);
  }
  // The others closed without a rank whose shard is void. What they lack of it, it owed too late.
  const std::uint64_t behind = late | (void_owners & ~call_.gone);
  for (std::size_t i = 0; i < call_.gather.size(); ++i) count_shard(i, behind, void_owners, sums);
  const double all = static_cast<double>(call_.layout.positions()) * call_.world;
  report_.causes = {sums.cut / all,        sums.network / all,     sums.at_owner / all,
                    sums.late_ranks / all, sums.void_shards / all, sums.gone / all};
}

void LossAccount::fill() {
  if (is_whole()) return;
  list_runs();
  report_.missing.assign(call_.world, 0);
  std::uint64_t stage1 = 0;
  std::uint64_t stage2 = 0;
  for (const ContributorRun& run : report_.runs) {
    const std::uint64_t missing = all_ranks_ & ~run.contributors;
    for (std::uint64_t rest = missing; rest != 0; rest &= rest - 1) {
      report_.missing[static_cast<std::size_t>(std::countr_zero(rest))] += run.count;
    }
    (run.contributors == 0 ? stage2 : stage1) +=
        static_cast<std::uint64_t>(std::popcount(missing)) * run.count;
  }
  if (stage1 + stage2 == 0) {
    report_.missing.clear();
    report_.runs.clear();
    if (!call_.late_self || call_.layout.positions() == 0) return;
    // Late without a shard of its own.
    report_.status = Status::late_self;
    report_.detail = "a peer had ended the call before; nothing is missing";
    return report_shards();
  }
  const double all =
      static_cast<double>(call_.layout.positions()) * static_cast<double>(call_.world);
  report_.lost_stage1 = static_cast<double>(stage1) / all;
  report_.lost_stage2 = static_cast<double>(stage2) / all;
  report_.lost_fraction = static_cast<double>(stage1 + stage2) / all;
  std::uint64_t silent = 0;
  for (Rank rank = 0; rank < call_.world; ++rank) {
    if (report_.missing[rank] == call_.layout.positions() && is_silent(rank)) silent |= bit(rank);
  }
  // A rank that came late lacks data of ranks that were in time.
  report_.late_ranks = ranks_of(call_.late_self ? silent & (bit(call_.rank) | call_.gone) : silent);
  report_.status = call_.late_self ? Status::late_self : Status::partial;
  report_shards();
  report_causes(silent);
  report_.detail = fmt::format(
      "{:.4f} % of the contributions are missing ({:.4f} % in stage 1, "
      "{:.4f} % in stage 2)",
      report_.lost_fraction * 100, report_.lost_stage1 * 100, report_.lost_stage2 * 100);
}

}  // namespace tarpon
