// The causes of data missing in bounded calls, joined over the ranks, and in one line.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/allreduce.h"

namespace tarpon {

/// What one call lost, over all ranks.
struct CallLoss {
  double bound_us = 0;            // the longest bound of a rank; 0: the call ran exact
  LossCauses causes;              // of the rank that lost most; their sum is what it lost
  double counted = 0;             // the largest LossCauses::of_live_ranks() of a rank
  double held_us = 0;             // the longest time that a rank waited beyond its bound
  std::uint64_t late = 0;         // bit r: a rank gave up waiting for rank r
  std::uint64_t void_shards = 0;  // bit r: a rank has nothing of the shard of rank r

  /// Joins the loss of one more rank.
  void add(const CallLoss& rank);
};

/// The mean of each cause over `calls`. Their sum is the mean of what the worst rank lost.
LossCauses mean_causes(std::span<const CallLoss> calls);

/// The mean loss that the loss target limits.
double mean_counted(std::span<const CallLoss> calls);

/// The bound of each call.
std::vector<double> bounds_of(std::span<const CallLoss> calls);

/// One line, without a newline: the bound, the target if there is one, the mean loss and its causes
/// that are not zero. With a target also the share that counts against it, if not all does. "-"
/// stands for the bound of no calls.
std::string loss_text(std::span<const CallLoss> calls, std::optional<double> target);

/// Shares by name.
void to_json(nlohmann::json& json, const LossCauses& causes);

}  // namespace tarpon
