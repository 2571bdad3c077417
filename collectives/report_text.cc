#include "collectives/report_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "collectives/rank_list.h"
#include "collectives/reserved_tags.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

constexpr std::size_t kMaxRanksInLine = 3;

constexpr Duration kNotablePause = 100ms;

double us(Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

std::uint64_t expected(const PeerReport& peer) {
  return peer.bytes_expected[0] + peer.bytes_expected[1];
}

std::uint64_t received(const PeerReport& peer) {
  return peer.bytes_received[0] + peer.bytes_received[1];
}

/// Ranks whose data is missing, the largest amount first.
std::vector<Rank> incomplete(const Report& report) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < report.peers.size(); ++rank) {
    const PeerReport& peer = report.peers[rank];
    if (received(peer) < expected(peer)) ranks.push_back(rank);
  }
  const auto lack = [&](Rank rank) {
    return expected(report.peers[rank]) - received(report.peers[rank]);
  };
  std::stable_sort(ranks.begin(), ranks.end(), [&](Rank a, Rank b) { return lack(a) > lack(b); });
  return ranks;
}

std::string text_of(Rank rank, const PeerReport& peer) {
  return fmt::format("rank {}: {} of {} B received, {}", rank, received(peer), expected(peer),
                     peer.last_heard
                         ? fmt::format("last heard {:.1f} ms ago", us(*peer.last_heard) / 1e3)
                         : "never heard");
}

}  // namespace

std::string progress_text(const Report& report) {
  const std::vector<Rank> lack = incomplete(report);
  const std::string reserved = reserved_name(report.tag);
  std::string text = fmt::format(
      "{}, stage {}, {:.1f} ms",
      reserved.empty() ? fmt::format("operation {} of tag {}", report.operation, report.tag)
                       : fmt::format("{} {}", reserved, report.operation),
      name(report.stage), us(report.elapsed) / 1e3);
  if (report.paused >= kNotablePause) {
    text += fmt::format("; this rank stood still for {:.1f} ms of it", us(report.paused) / 1e3);
  }
  if (report.held > Duration::zero()) {
    text +=
        fmt::format("; waited {:.1f} ms beyond its bound for live ranks", us(report.held) / 1e3);
  }
  for (std::size_t i = 0; i < std::min(lack.size(), kMaxRanksInLine); ++i) {
    text += "; " + text_of(lack[i], report.peers[lack[i]]);
  }
  if (lack.size() > kMaxRanksInLine) {
    text += fmt::format("; data of {} other ranks is missing too", lack.size() - kMaxRanksInLine);
  }
  if (report.lost_fraction > 0) {
    text += fmt::format("; {:.4f} % of the contributions missing", report.lost_fraction * 100);
  }
  if (!report.void_shards.empty()) {
    text += fmt::format("; nothing of the shard of {}", rendezvous::rank_list(report.void_shards));
  }
  if (report.status == Status::late_self) {
    text += fmt::format("; {} B fetched", report.bytes_fetched);
  }
  if (report.operations_missed > 0) {
    text += fmt::format("; {} operation{} missed, from {} on", report.operations_missed,
                        report.operations_missed == 1 ? "" : "s", report.first_missed);
  }
  return text;
}

std::string to_string(const Report& report) {
  const std::string progress = progress_text(report);
  if (report.status == Status::complete && !report.detail.empty()) {
    return fmt::format("{}: {}; {}", name(report.status), progress, report.detail);
  }
  // The detail of other results repeats what the progress says.
  if (has_result(report.status) || report.detail.empty()) {
    return fmt::format("{}: {}", name(report.status), progress);
  }
  return fmt::format("{}: {} ({})", name(report.status), report.detail, progress);
}

std::string errors_text(const std::vector<std::string>& error_by_rank) {
  std::string text;
  for (std::size_t rank = 0; rank < error_by_rank.size(); ++rank) {
    const std::string& error = error_by_rank[rank];
    std::vector<std::size_t> alike;
    for (std::size_t other = 0; other < error_by_rank.size(); ++other) {
      if (error_by_rank[other] == error) alike.push_back(other);
    }
    if (error.empty() || alike.front() != rank) continue;
    text += text.empty() ? "" : "; ";
    text += fmt::format("{}: {}", rendezvous::rank_list(alike), error);
  }
  return text;
}

}  // namespace tarpon
