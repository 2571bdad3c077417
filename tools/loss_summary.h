// Why bounded calls lack data: joined over the ranks, and in one line.
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
  LossCauses causes;              // see add()
  std::uint64_t late = 0;         // bit r: a rank gave up waiting for rank r
  std::uint64_t void_shards = 0;  // bit r: a rank has nothing of the shard of rank r

  /// Joins the loss of one more rank. `cut`, `network` and `at_owner` are those of the rank that
  /// lost the largest sum of them, which is what counts against the loss target; `late_ranks` and
  /// `void_shards` are the largest of any rank.
  void add(const CallLoss& rank);
};

/// The mean of each cause over `calls`. Its of_network() is the mean loss that the loss target
/// limits.
LossCauses mean_causes(std::span<const CallLoss> calls);

/// The bound of each call.
std::vector<double> bounds_of(std::span<const CallLoss> calls);

/// One line: the bound, the target if there is one, the mean loss and its causes that are not zero;
/// with a target the part of it that counts, where that is not all.
/// Ends without a newline. "-" stands for the bound of no calls.
std::string loss_text(std::span<const CallLoss> calls, std::optional<double> target);

/// Shares by name.
void to_json(nlohmann::json& json, const LossCauses& causes);

}  // namespace tarpon
