// Reports the contributions in the result of a bounded AllReduce, and the late ranks: by range, by
// rank and in total.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "collectives/engine/tar_call.h"

namespace tarpon {

/// Length of the bucket in the unit of runs: elements of the bucket, or of the coded one.
std::uint64_t TarCall::positions() const {
  return coding_ ? coding_->layout().coded_count() : call_->arguments.count;
}

void TarCall::add_runs(std::uint64_t first_byte, std::uint64_t bytes,
                       const ContributorMasks& contributors) {
  const std::uint64_t width = element_bytes(call_->arguments.type);
  const auto place = [&](std::uint32_t slot) {
    const std::uint64_t at = first_byte + slot * slot_stride();
    return coding_ ? coding_->row_at(at) * coding_->layout().row_elements() : at / width;
  };
  std::vector<ContributorRun>& runs = call_->report.runs;
  for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
    const std::uint64_t first = place(slot);
    const std::uint64_t count = slot_length(bytes, slot_bytes(), slot) / width;
    if (!runs.empty() && runs.back().contributors == contributors[slot] &&
        runs.back().first + runs.back().count == first) {
      runs.back().count += count;
    } else {
      runs.push_back({first, count, contributors[slot]});
    }
  }
}

/// Sorts the runs. Joins neighbours that touch and have the same contributors.
void TarCall::join_runs() {
  std::vector<ContributorRun>& runs = call_->report.runs;
  std::sort(runs.begin(), runs.end(),
            [](const ContributorRun& a, const ContributorRun& b) { return a.first < b.first; });
  std::size_t last = 0;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].contributors == runs[last].contributors) {
      runs[last].count += runs[i].count;
    } else {
      runs[++last] = runs[i];
    }
  }
  if (!runs.empty()) runs.resize(last + 1);
}

/// Whether every contribution has arrived.
bool TarCall::whole() const {
  if (late_self_) return false;
  const std::uint64_t all = setting_.world >= 64 ? ~0ull : bit(setting_.world) - 1;
  const auto full = [all](const ContributorMasks& contributors) {
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

/// Reports why contributions are missing. This rank knows it for messages to itself. Contributions
/// that a received shard lacks were missing at its owner.
void TarCall::report_causes() {
  const std::uint64_t late = mask_of(call_->report.late_ranks);
  const std::uint64_t void_owners = mask_of(call_->report.void_shards);
  const double world = setting_.world;
  LossCauses sums;  // in elements
  const auto length = [this](std::uint64_t bytes, std::uint32_t slot) {
    return static_cast<double>(slot_length(bytes, slot_bytes(), slot) /
                               element_bytes(call_->arguments.type));
  };
  const auto missing_in = [&sums](const MessageProgress& message, std::uint32_t slot) -> double& {
    return slot < message.end ? sums.network : sums.cut;
  };
  std::vector<MessageProgress> scatter(setting_.world);
  for (Rank rank = 0; rank < setting_.world; ++rank) {
    if (rank != setting_.rank) scatter[rank] = endpoint_.progress(handle(), kScatter, rank);
  }
  for (std::uint32_t slot = 0; slot < reducer_.slots(); ++slot) {
    const double elements = length(shards_.own.count, slot);
    if (late_self_) {
      sums.void_shards += world * elements;
      continue;
    }
    for (Rank rank = 0; rank < setting_.world; ++rank) {
      if ((reducer_.contributors()[slot] & bit(rank)) != 0) continue;
      ((late & bit(rank)) != 0 ? sums.late_ranks : missing_in(scatter[rank], slot)) += elements;
    }
  }
  const std::vector<TarShards::Shard>& others = shards_.others;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const MessageProgress message = endpoint_.progress(handle(), kGather, others[i].owner);
    const bool is_void = (void_owners & bit(others[i].owner)) != 0;
    const ContributorMasks& contributors = gather_[i].contributors();
    for (std::uint32_t slot = 0; slot < contributors.size(); ++slot) {
      const double elements = length(others[i].range.count, slot);
      if (contributors[slot] == 0) {
        (is_void ? sums.void_shards : missing_in(message, slot)) += world * elements;
        continue;
      }
      for (Rank rank = 0; rank < setting_.world; ++rank) {
        if ((contributors[slot] & bit(rank)) != 0) continue;
        ((late & bit(rank)) != 0 ? sums.late_ranks : sums.at_owner) += elements;
      }
    }
  }
  const double all = static_cast<double>(positions()) * world;
  call_->report.causes = {sums.cut / all, sums.network / all, sums.at_owner / all,
                          sums.late_ranks / all, sums.void_shards / all};
}

void TarCall::report_loss() {
  if (whole()) return;
  Report& report = call_->report;
  const ContributorMasks nobody(reducer_.slots(), 0);
  add_runs(shards_.own.first, shards_.own.count, late_self_ ? nobody : reducer_.contributors());
  const std::vector<TarShards::Shard>& others = shards_.others;
  for (std::size_t i = 0; i < others.size(); ++i) {
    add_runs(others[i].range.first, others[i].range.count, gather_[i].contributors());
  }
  join_runs();
  report.missing.assign(setting_.world, 0);
  std::uint64_t stage1 = 0;
  std::uint64_t stage2 = 0;
  for (const ContributorRun& run : report.runs) {
    for (Rank rank = 0; rank < setting_.world; ++rank) {
      if ((run.contributors & bit(rank)) != 0) continue;
      report.missing[rank] += run.count;
      (run.contributors == 0 ? stage2 : stage1) += run.count;
    }
  }
  if (stage1 + stage2 == 0) {
    report.missing.clear();
    report.runs.clear();
    return;
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
