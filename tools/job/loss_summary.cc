#include "tools/job/loss_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/cli/quantile.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

std::string duration_text(double us) {
  if (us < 1e3) return fmt::format("{:.0f} us", us);
  if (us < 1e6) return fmt::format("{:.1f} ms", us / 1e3);
  return fmt::format("{:.1f} s", us / 1e6);
}

std::string bound_text(std::span<const CallLoss> calls) {
  const std::vector<double> bounds = bounds_of(calls);
  const auto median = quantile(bounds, 0.5);
  if (!median) return "-";
  const std::string usual = duration_text(*median);
  const std::string largest = duration_text(*quantile(bounds, 1));
  return usual == largest ? usual : fmt::format("{} (median; largest {})", usual, largest);
}

double sum(const LossCauses& causes) {
  return causes.of_live_ranks() + causes.gone;
}

std::string percent(double share) {
  return fmt::format("{:.3g}", share * 100);
}

/// "; late ranks: 2 (3 calls), 5 (1 call), 1.25 %"; empty when no call has such ranks.
std::string ranks_text(std::span<const CallLoss> calls, const char* what,
                       std::uint64_t CallLoss::*mask, double share) {
  std::uint64_t ever = 0;
  for (const CallLoss& call : calls) ever |= call.*mask;
  if (ever == 0) return "";
  std::string text = fmt::format("; {}: ", what);
  for (const Rank rank : ranks_of(ever)) {
    const auto many = std::count_if(calls.begin(), calls.end(), [&](const CallLoss& call) {
      return (call.*mask & bit(rank)) != 0;
    });
    text += fmt::format("{} ({} call{}), ", rank, many, many == 1 ? "" : "s");
  }
  return text + percent(share) + " %";
}

}  // namespace

void CallLoss::add(const CallLoss& rank) {
  bound_us = std::max(bound_us, rank.bound_us);
  late |= rank.late;
  void_shards |= rank.void_shards;
  counted = std::max(counted, rank.counted);
  held_us = std::max(held_us, rank.held_us);
  if (sum(rank.causes) > sum(causes)) causes = rank.causes;
}

LossCauses mean_causes(std::span<const CallLoss> calls) {
  LossCauses mean;
  const double all = static_cast<double>(std::max<std::size_t>(1, calls.size()));
  for (const CallLoss& call : calls) {
    mean.cut += call.causes.cut / all;
    mean.network += call.causes.network / all;
    mean.at_owner += call.causes.at_owner / all;
    mean.late_ranks += call.causes.late_ranks / all;
    mean.void_shards += call.causes.void_shards / all;
    mean.gone += call.causes.gone / all;
  }
  return mean;
}

double mean_counted(std::span<const CallLoss> calls) {
  double total = 0;
  for (const CallLoss& call : calls) total += call.counted;
  return total / static_cast<double>(std::max<std::size_t>(1, calls.size()));
}

std::vector<double> bounds_of(std::span<const CallLoss> calls) {
  std::vector<double> bounds;
  for (const CallLoss& call : calls) bounds.push_back(call.bound_us);
  return bounds;
}

std::string loss_text(std::span<const CallLoss> calls, std::optional<double> target) {
  const LossCauses mean = mean_causes(calls);
  const std::string late =
      ranks_text(calls, "late ranks", &CallLoss::late, mean.late_ranks + mean.gone);
  const std::string voids =
      ranks_text(calls, "void shards", &CallLoss::void_shards, mean.void_shards);
  std::string text = "bound " + bound_text(calls);
  if (target) text += fmt::format(", target {} %", percent(*target));
  const double lost = sum(mean);
  if (lost == 0 && late.empty() && voids.empty()) return text + ", nothing lost";
  text += fmt::format(", lost {} %", percent(lost));
  const char* before = ": ";
  for (const auto& [share, name] : {std::pair(mean.cut, "cut"), std::pair(mean.network, "network"),
                                    std::pair(mean.at_owner, "at owner")}) {
    if (share == 0) continue;
    text += fmt::format("{}{} {}", before, percent(share), name);
    before = ", ";
  }
  text += late + voids;
  const double counted = mean_counted(calls);
  if (target && lost > counted) {
    text += fmt::format("; {} % count against the target", percent(counted));
  }
  return text;
}

void to_json(nlohmann::json& json, const LossCauses& causes) {
  json = {{"cut", causes.cut},
          {"network", causes.network},
          {"at_owner", causes.at_owner},
          {"late_ranks", causes.late_ranks},
          {"void_shards", causes.void_shards},
          {"gone", causes.gone}};
}

}  // namespace tarpon
