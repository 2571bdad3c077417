// How long bounded AllReduces may take, and when their stages end.
//
// The bound D of a call is the time of the whole call, from its clock's start to its return. It is
// given, or learnt: the shortest one whose mean lost share stays at the target of the communicator
// (target_bound.h). The gather time g is what a call needs after its scatter: the scatter
// ends g before the call does (gather_time.h).
//
// Bounds are learnt by the *kind* of calls: size class (sizes within a factor of two), coded or
// not, and how many calls this rank had open. Times are scaled by bytes within a class, and between
// classes. A kind that is not known takes the values of the nearest known one. A call may take all
// of its deadline while no kind near it is known. D is at least 2 ms above the median of its kind,
// because a rank may wait that long for a core. That matters for calls shorter than 20 ms, to which
// TargetBound leaves less.
//
// Ranks tell each other their D, g and last lost share in READY. When its clock starts, a call
// takes the upper median of the D that live ranks told last. So no owner sends data for which the
// others do not wait any more. g is the rank's own value: the time that its shard needs to reach
// all peers. A rank that is in doubt whether it is late waits for the largest g. The share that
// counts against the target is the largest of any rank.
//
// Early closing uses t_C, the usual time of each stage: the median of the last 9 calls. For the
// whole call it is the median of this rank's time and those in the peers' headers. If no more
// packets arrive, a stage closes x % of t_C after the last tail mark. x doubles when early closing
// lost more than a tenth of the target, and falls by one point below a hundredth.
//
// BoundRule::optireduce is the published rule (NSDI'25, section on UBT), for comparison: each
// stage has half of the 95th percentile of 20 exact calls.
//
// Calls that lack a dead or suspect rank teach nothing. A call in which no data of some rank
// arrived is held until that rank is heard again, and forgotten if the rank turns out suspect.
//
// Not thread-safe. No clock inside.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/learning/gather_time.h"
#include "collectives/engine/learning/recent_values.h"
#include "collectives/engine/learning/target_bound.h"
#include "transport/endpoint.h"
#include "transport/time.h"

namespace tarpon {

/// The properties by which calls are alike.
struct CallKind {
  std::uint64_t bytes = 0;  // of the bucket
  bool coded = false;
  std::uint32_t open = 1;  // calls that this rank had open when the call began, itself included
};

/// A call that is to be bounded.
struct BoundedCall {
  BoundRule rule = BoundRule::automatic;
  std::optional<Duration> limit;  // the caller's bound, if any
  CallKind kind;
  Duration coding{};  // time for encoding and decoding such a call, if it is coded

  /// Whether the caller's bound is D.
  bool is_given() const { return rule == BoundRule::automatic && limit.has_value(); }
};

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
  BoundTerms terms;                 // of this rank
  bool tells = false;               // the peers do not know `terms` from earlier calls
  std::array<Duration, 2> early{};  // silence after the last tail that ends a stage; zero: none
  std::uint16_t stage_time = 0;     // what this rank expects the call to take, for the headers
};

/// Measurements of a call at this rank.
struct BoundSample {
  CallKind kind;
  Duration elapsed{};                 // from the clock's start to the return
  std::array<Duration, 2> stages{};   // to the end of each stage
  Duration gather{};                  // what the call needs after its scatter: see GatherTime
  double scattered = 1;               // share of the scatter that came
  double gathered = 1;                // share of the gather that came
  double lost = 0;                    // lost share: see LossCauses::of_network()
  std::optional<Duration> straggler;  // a live rank was late: when its first packet came
  std::uint64_t silent = 0;  // bit r: nothing came of rank r, which was live and not suspect
  bool bounded = false;      // false: it calibrates BoundRule::optireduce
  double early_lost = 0;     // share of the packets that came after an early close
  double packets = 0;        // packets that came
};

struct BoundsOptions {
  std::uint16_t world_size = 1;
  double loss_target = 0.001;
  bool x_loop = true;  // whether the wait of an early close adapts
};

class Bounds {
 public:
  explicit Bounds(const BoundsOptions& options) : options_(options) {}

  /// Operations with lower numbers run exact under `rule`, alike on all ranks.
  static std::uint32_t calibration(BoundRule rule);

  /// `left`: until the deadline.
  BoundPlan plan(const BoundedCall& call, Duration left);

  /// Takes the terms that `peer` has told for a call of `kind`.
  void heard(Rank peer, const CallKind& kind, const BoundTerms& terms);

  /// Takes the `stage_time` in the header of a packet of `peer` in a call of `kind`.
  void heard(Rank peer, const CallKind& kind, std::uint16_t stage_time);

  /// The bound of a call that began with `own`. `live` (bit r: rank r): ranks whose terms count.
  CallBound agree(const BoundedCall& call, const BoundTerms& own, std::uint64_t live,
                  Duration left) const;

  /// Learns from a call that is over. `limit` as in plan().
  void learn(const BoundSample& sample, BoundRule rule, std::optional<Duration> limit);

  /// Forgets the held calls that lack `rank`, which is dead or suspect: they teach nothing.
  void absent(Rank rank);

  /// Share of t_C that an early close waits: 0.01 to 0.5.
  double patience() const { return patience_; }

 private:
  /// What the calls of one kind have taught.
  struct Series {
    explicit Series(const BoundsOptions& options)
        : bound(options.loss_target), gather(options.world_size) {}
    /// D for `size` scaled bytes, in seconds. REQUIRES: bound.bound() is known.
    double whole(double size) const;

    TargetBound bound;  // in seconds per scaled byte, like all members
    GatherTime gather;
    std::array<RecentValues, 2> stages{RecentValues(9), RecentValues(9)};  // t_C
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
  using SeriesKey = std::tuple<std::size_t, bool, std::uint32_t>;

  /// An estimate of a call from the calls of a near kind.
  struct Known {
    const Series* series = nullptr;
    double factor = 0;  // time of the call, divided by the time of one scaled byte
    double coding = 0;  // seconds that the call takes beyond that
  };

  static SeriesKey key_of(const CallKind& kind);
  const Series* find(const CallKind& kind) const;
  template <typename Fits>
  std::optional<Known> nearest(const CallKind& kind, Duration coding, Fits fits) const;
  std::optional<double> learnt(const CallKind& kind, Duration coding) const;
  Duration gather_time(const BoundedCall& call, Duration whole) const;
  Duration whole_bound(const BoundedCall& call, Duration left) const;
  void plan_early(const CallKind& kind, BoundPlan& plan) const;
  Told& told_of(const CallKind& kind);
  void teach(const BoundSample& sample, BoundRule rule, std::optional<Duration> limit);
  double account(const BoundSample& sample);
  void adapt_patience(double trouble, double packets, double high, double low);

  const BoundsOptions options_;
  std::map<SeriesKey, Series> series_;
  std::map<SeriesKey, Told> told_;
  std::map<std::size_t, std::vector<double>> calibrations_;  // by size class: seconds per byte
  std::vector<Held> held_;
  double patience_ = 0.10;
};

}  // namespace tarpon
