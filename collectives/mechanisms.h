// Which mechanisms of the bounded transport are on: each can be taken out or replaced alone, so
// that their effects can be told apart. Alike on all ranks of a job.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/traffic_rules.h"

namespace tarpon {

/// How an owner weighs the contributions to a slot that reach it in stage 1, when others are lost.
/// There are N ranks; the contributions of c of them are in the slot; a remote one is lost with
/// probability p.
enum class Rescale : std::uint8_t {
  /// The sum of what came, times N / c; an average divides by c. The weights of a slot add up to N,
  /// and no loss rate needs to be known. It is biased, because the owner's own contribution is
  /// never lost: on average that weighs w = (1 - p^N) / (1 - p), and each remote one
  /// (N - w) / (N - 1): 1.05 and 0.95 with 2 ranks and 5 %, 1.33 and 0.89 with 4 ranks and 25 %.
  /// Rotation spreads the bias over the ranks.
  count,
  /// No weights: a lost contribution counts as zero, and an average divides by N. A remote
  /// contribution weighs 1 - p on average. OptiReduce's public code does this.
  none,
};

/// Whether bounded calls of float32 send coefficients (codec/hadamard.h), so that a loss costs all
/// elements alike.
enum class CodecRule : std::uint8_t {
  automatic,  // on where calls lose more than 2 %, off below 1 %, alike on all ranks, whatever the
              // loss target (collectives/membership/epoch_history.h)
  on,
  off,
};

struct Mechanisms {
  InflowRule inflow = InflowRule::window;
  SendRule sending = SendRule::credit;
  /// Ownership of shards rotates from operation to operation, so that a slow rank or link does not
  /// always delay the same elements. If off, rank r always owns shard r: then exact calls with
  /// equal inputs have equal results, bit by bit, whatever their numbers, and learnt shares are
  /// refused.
  bool rotation = true;
  /// Bounded calls ask for missing slots of stage 2 while time remains.
  bool repair = true;
  /// They ask for missing slots of stage 1 as well; if off, a slot that is surely lost is given up.
  bool scatter_repair = true;
  /// Owners keep their shard, and late ranks fetch it; if off, a late rank has only what came.
  bool retention = true;
  /// The wait before an early close adapts to packets that came too late, or under
  /// BoundRule::optireduce to lost packets. If off, it stays at 10 % of t_C.
  bool x_loop = true;
  /// Bounded calls look for NaN and infinity in their input; if a rank had any, the whole result is
  /// NaN. If off, NaN and infinity spread by addition, except where they are lost.
  bool nonfinite = true;
  Rescale rescale = Rescale::count;
  CodecRule codec = CodecRule::automatic;
  /// Mean share of the contributions that bounded calls may lose in order to end early
  /// (BoundRule::learnt). Above 0 and below 1.
  double loss_target = 0.001;

  bool operator==(const Mechanisms&) const = default;

  /// OptiReduce's mechanisms as published (NSDI'25); to be combined with BoundRule::optireduce.
  static constexpr Mechanisms optireduce() {
    return {.inflow = InflowRule::incast,
            .sending = SendRule::timely,
            .repair = false,
            .scatter_repair = false,
            .retention = false,
            .nonfinite = false,
            .rescale = Rescale::none};
  }

  /// Switches one off: "repair", "scatter-repair", "retention", "x-loop", "nonfinite". False for
  /// other names.
  bool take_out(std::string_view name);
};

std::string_view name(InflowRule rule);
std::string_view name(SendRule rule);
std::string_view name(Rescale rescale);
std::string_view name(CodecRule rule);

/// "rotating", or "fixed": Mechanisms::rotation, as TARPON_ORDER has it.
std::string_view order_name(const Mechanisms& mechanisms);

/// All but the rotation in one line, for humans and for comparison.
std::string describe(const Mechanisms& mechanisms);

}  // namespace tarpon
