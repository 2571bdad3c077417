// Which mechanisms of the bounded transport are on: each can be taken out or replaced alone, so
// that their effects can be told apart. Alike on all ranks of a job.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/traffic_rules.h"

namespace tarpon {

/// How an owner weighs what it got of a slot in stage 1, where losses make contributions lack. N
/// ranks, c of them in the slot, each remote one lost with probability p.
enum class Rescale : std::uint8_t {
  /// What came, times N / c; an average divides by c. The weights of a slot add up to N, and no
  /// rate needs to be known. Biased, because the owner's own contribution is never lost: it weighs
  /// (1 - p^N) / (1 - p) on average, each remote one (N - that) / (N - 1): 1.05 and 0.95 with 2
  /// ranks and 5 %, 1.33 and 0.89 with 4 ranks and 25 %. Rotation spreads that over the ranks.
  count,
  /// A remote contribution of rank s times 1 / (1 - p_s), wherever it has come: it weighs
  /// (1 - p) / (1 - p) on average, 1 as the owner's own. In slots that lack nothing, too: were
  /// those left alone, it would weigh 1 - p (1 - p)^(N-2) on average. The weights of one slot do
  /// not add up to N, so that it varies more. p_s is measured (collectives/engine/sender_loss.h);
  /// where it
  /// is 0 this is plain addition, else each arriving slot is multiplied and added, in one pass.
  inverse,
  /// Nothing: what is lost counts as zero, an average divides by N. A remote contribution weighs
  /// 1 - p. As OptiReduce's public code has it.
  none,
};

/// Whether bounded calls of float32 travel as coefficients (codec/hadamard.h), so that what is lost
/// costs all elements alike.
enum class CodecRule : std::uint8_t {
  automatic,  // on at a loss target of 0.5 % and more; else on above 2 % of loss, off below 1 %,
              // alike on all ranks (collectives/membership/epoch_history.h)
  on,
  off,
};

struct Mechanisms {
  InflowRule inflow = InflowRule::window;
  SendRule sending = SendRule::credit;
  /// Ownership of shards rotates from operation to operation; else rank r always owns shard r.
  bool rotation = true;
  /// Bounded calls ask for what is missing of stage 2 while time remains.
  bool repair = true;
  /// They ask for what is missing of stage 1 as well; else a slot that is surely lost is given up.
  bool scatter_repair = true;
  /// Owners keep their shard for ranks that come late, which fetch it; else those have what came.
  bool retention = true;
  /// The wait of an early close adapts: to packets that came too late, or under
  /// BoundRule::optireduce to lost ones. Off: it stays at 10 % of t_C.
  bool x_loop = true;
  /// Bounded calls look for NaN and infinity in their input, and a result is NaN as a whole where a
  /// rank had some; else it spreads as the addition and the losses have it.
  bool nonfinite = true;
  Rescale rescale = Rescale::count;
  CodecRule codec = CodecRule::automatic;
  /// Mean share that bounded calls may lose so that they end early (BoundRule::learnt). Above 0 and
  /// below 1.
  double loss_target = 0.001;

  /// Whether float32 is coded from the first call on, and stays so: a rank that accepts 0.5 % of
  /// loss and more would soon turn the codec on.
  bool always_coded() const {
    return codec == CodecRule::on || (codec == CodecRule::automatic && loss_target >= 0.005);
  }

  bool operator==(const Mechanisms&) const = default;

  /// As published (NSDI'25); to be combined with BoundRule::optireduce.
  static constexpr Mechanisms optireduce() {
    return {.inflow = InflowRule::incast,
            .sending = SendRule::timely,
            .repair = false,
            .scatter_repair = false,
            .retention = false,
            .nonfinite = false,
            .rescale = Rescale::none};
  }

  /// Switches one off: "rotation", "repair", "scatter-repair", "retention", "x-loop", "nonfinite".
  /// False for other names.
  bool take_out(std::string_view name);
};

std::string_view name(InflowRule rule);
std::string_view name(SendRule rule);
std::string_view name(Rescale rescale);
std::string_view name(CodecRule rule);

/// One line, for humans and for comparison.
std::string describe(const Mechanisms& mechanisms);

}  // namespace tarpon
