// How long bounded AllReduces may take, and when their stages end.
//
// The bound D of a call is the time of the whole call, from its clock's start to its return. The
// gather time g is what a call needs after its scatter: the scatter ends g before the call does
// (gather_time.h). Both come from the rule of the call: LearntBound or PercentileBound.
//
// Ranks tell each other their D, g and last lost share in READY. When its clock starts, a call
// takes the upper median of the D that live ranks told last: in earlier calls, or in this one if
// they are of the half that began first. A rank that begins later hears more terms by then, and the
// others do not count them. So no owner sends data for which the others do not wait any more. g is
// the rank's own value: the time that its shard needs to reach all peers. A rank that is in doubt
// whether it is late waits for the largest g. The share that counts against the target is the
// largest of any rank.
//
// Early closing uses t_C, the usual time of each stage: the median of the last 9 calls of a kind.
// A call without a bound closes no stage early. For the whole call it is the median of this rank's
// time and those in the peers' headers. If no more packets arrive, a stage closes x % of t_C after
// the last tail mark. x doubles when early closing lost too much, and falls by one point when it
// lost little; the rule of the call says where these limits are.
//
// Calls that begin without a dead or suspect rank teach what the others take, and calls in which a
// rank becomes so teach nothing. A call in which no data of some rank arrived teaches g. The rest
// is held until that rank is heard again, and forgotten if it turns out suspect.
//
// Not thread-safe. No clock inside.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "collectives/engine/learning/bound_estimate.h"
#include "collectives/engine/learning/call_kind.h"
#include "collectives/engine/learning/learnt_bound.h"
#include "collectives/engine/learning/percentile_bound.h"
#include "collectives/engine/learning/recent_values.h"
#include "transport/endpoint.h"
#include "transport/time.h"

namespace tarpon {

/// When a call ends at this rank, from its clock's start.
struct CallBound {
  Duration whole{};   // D
  Duration gather{};  // g: the scatter ends this long before
  Duration grace{};   // the largest g of any rank: a rank in doubt waits that much longer
};

/// The expectations of a call that a rank tells its peers.
struct BoundTerms {
  Duration whole{};   // D; an unknown D is the time left until the deadline
  Duration gather{};  // g
  double lost = 0;    // share that the rank's last call of that size lacked
};

/// For READY: microseconds and millionths.
CallTerms encode(const BoundTerms& terms);
BoundTerms decode(const CallTerms& terms);

/// The expectations with which a call begins.
struct BoundPlan {
  BoundTerms terms;                  // of this rank
  std::optional<BoundTerms> before;  // those that the peers know from earlier calls
  bool tells = false;                // the peers do not know `terms` from earlier calls
  std::array<Duration, 2> early{};   // silence after the last tail that ends a stage; zero: none
  std::uint16_t stage_time = 0;      // what this rank expects the call to take, for the headers
};

struct BoundsOptions {
  std::uint16_t world_size = 1;
  double loss_target = 0.001;
  bool x_loop = true;  // whether the wait of an early close adapts
};

class Bounds {
 public:
  explicit Bounds(const BoundsOptions& options)
      : options_(options), learnt_(options.world_size, options.loss_target) {}

  /// Operations with lower numbers run exact under `rule`, alike on all ranks.
  static std::uint32_t calibration(BoundRule rule);

  /// Whether a call under `rule` goes on while it lacks too much of live ranks.
  static bool waits_for_data(BoundRule rule) { return rule != BoundRule::optireduce; }

  /// `left`: until the deadline.
  BoundPlan plan(const BoundedCall& call, Duration left);

  /// Takes the terms that `peer` has told for a call of `kind`.
  void heard(Rank peer, const CallKind& kind, const BoundTerms& terms);

  /// Takes the `stage_time` in the header of a packet of `peer` in a call of `kind`.
  void heard(Rank peer, const CallKind& kind, std::uint16_t stage_time);

  /// The bound of a call. `own`: the terms of this rank that the others count, if any. `live` (bit
  /// r: rank r): peers whose terms count.
  CallBound agree(const BoundedCall& call, const std::optional<BoundTerms>& own, std::uint64_t live,
                  Duration left) const;

  /// Learns from a call that is over. `limit`: the caller's bound, if any.
  void learn(const BoundSample& sample, BoundRule rule, std::optional<Duration> limit);

  /// Forgets the held calls that lack `rank`, which is dead or suspect: they teach nothing.
  void absent(Rank rank);

  /// The target of learnt bounds from now on. REQUIRES: 0 < share < 1.
  void set_loss_target(double share) { learnt_.set_loss_target(share); }
  double loss_target() const { return learnt_.loss_target(); }

  /// Share of t_C that an early close waits: 0.01 to 0.5.
  double patience() const { return patience_; }

 private:
  /// t_C, in seconds per scaled byte.
  struct StageTimes {
    std::array<RecentValues, 2> stages{RecentValues(9), RecentValues(9)};
  };
  /// The terms that ranks told each other for calls of one kind.
  struct Told {
    struct Peer {
      std::uint64_t bytes = 0;  // of the call that `terms` were told for; 0: none were
      BoundTerms terms;         // `lost`: since it was last accounted for
      double usual = 0;         // of the whole call, seconds per scaled byte; 0: unknown
    };
    std::vector<Peer> peers;  // by rank
    bool told = false;        // this rank has told `own`
    BoundTerms own;
    double own_lost = 0;     // of the last call
    double untold_lost = 0;  // the largest since the peers were told
  };
  struct Held {
    BoundSample sample;
    BoundRule rule;
    std::optional<Duration> limit;
  };

  /// The rule of a call.
  const BoundEstimate& estimate(BoundRule rule) const;
  void plan_early(const CallKind& kind, BoundPlan& plan) const;
  Told& told_of(const CallKind& kind);
  void teach(const BoundSample& sample, BoundRule rule, std::optional<Duration> limit);
  double account(const BoundSample& sample);
  void adapt_patience(const EarlyLoss& loss, double packets);

  const BoundsOptions options_;
  LearntBound learnt_;
  PercentileBound percentile_;
  std::map<CallKindKey, StageTimes> usual_;
  std::map<CallKindKey, Told> told_;
  std::vector<Held> held_;
  double patience_ = 0.10;
};

}  // namespace tarpon
