// How long bounded AllReduces may take, and when their stages end.
//
// The bound D of a call is the time of the whole call, from its clock's start to its return. It is
// given, or learnt: the shortest one whose mean lost share stays at the target of the communicator
// (target_bound.h). The gather time g is what a call needs after its scatter: the scatter
// ends g before the call does (gather_time.h).
//
// Calls are learnt from by *kind*: size class (sizes within a factor of two), coded or not, and how
// many calls this rank had open. Times are scaled by bytes within a class, and between classes. A
// kind that is not known takes what the nearest known one says. A call may take all of its deadline
// while no kind near it is known. D is at least 2 ms above the median of its kind: so long a rank
// may wait for a core. That matters for calls shorter than 20 ms: TargetBound leaves them less.
//
// Ranks tell each other their D, g and last lost share in READY. When its clock starts, a call
// takes the upper median of the D that live ranks told last: no owner sends what the others do not
// wait for any more. g is the rank's own: it is the time that its shard needs to reach all peers. A
// rank that is in doubt whether it is late waits for the largest g. The share that counts against
// the target is the largest of any rank.
//
// t_C, the usual time of each stage, serves early closing: the median of the last 9 calls; for the
// whole call the median over this and what the peers say in their headers. A stage closes x % of
// t_C after the last tail mark when nothing comes any more. x doubles when early closing lost more
// than a tenth of the target, and falls by one point below a hundredth.
//
// BoundRule::optireduce is the published rule (NSDI'25, section on UBT), for comparison: each
// stage has half of the 95th percentile of 20 exact calls.
//
// What teaches nothing: calls that lack a rank which is dead or suspect. A call in which nothing of
// some rank came is held until that rank is heard again, and forgotten when it turns out suspect.
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

/// Which calls are alike.
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
  Duration coding{};  // what encoding and decoding such a call takes, where it is coded

  /// Whether the caller's bound is D.
  bool is_given() const { return rule == BoundRule::automatic && limit.has_value(); }
};

/// When a call ends at this rank, from its clock's start.
struct CallBound {
  Duration whole{};   // D
  Duration gather{};  // g: the scatter ends so long before
  Duration grace{};   // the largest g of any rank: a rank in doubt waits so much longer
};

/// What a rank tells its peers of a call.
struct BoundTerms {
  Duration whole{};   // D; an unknown D is the time left until the deadline
  Duration gather{};  // g
  double lost = 0;    // share that the rank's last call of that size lacked
};

/// For READY: microseconds and millionths.
CallTerms encode(const BoundTerms& terms);
BoundTerms decode(const CallTerms& terms);

/// What a call begins with.
struct BoundPlan {
  BoundTerms terms;                 // of this rank
  bool tells = false;               // the peers do not know `terms` from earlier calls
  std::array<Duration, 2> early{};  // silence after the last tail, by stage; zero: none ends it
  std::uint16_t stage_time = 0;     // what this rank expects the call to take, for the headers
};

/// How a call went at this rank.
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
  bool bounded = false;      // else it calibrates BoundRule::optireduce
  double early_lost = 0;     // share of the packets that came after an early close
  double packets = 0;        // that came
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

  /// `peer` has told its terms for a call of `kind`.
  void heard(Rank peer, const CallKind& kind, const BoundTerms& terms);

  /// The header of a packet of `peer` in a call of `kind` held this `stage_time`.
  void heard(Rank peer, const CallKind& kind, std::uint16_t stage_time);

  /// What holds for a call that began with `own`. `live` (bit r: rank r): ranks that count.
  CallBound agree(const BoundedCall& call, const BoundTerms& own, std::uint64_t live,
                  Duration left) const;

  /// A call is over. `limit` as in plan().
  void learn(const BoundSample& sample, BoundRule rule, std::optional<Duration> limit);

  /// `rank` is dead or suspect: calls that lack it teach nothing.
  void absent(Rank rank);

  /// Share of t_C that an early close waits: 0.01 to 0.5.
  double patience() const { return patience_; }

 private:
  /// Calls that teach the same.
  struct Series {
    explicit Series(const BoundsOptions& options)
        : bound(options.loss_target), gather(options.world_size) {}
    /// D for `size` scaled bytes, in seconds. REQUIRES: bound.bound() is known.
    double whole(double size) const;

    TargetBound bound;  // seconds per scaled byte, as all here
    GatherTime gather;
    std::array<RecentValues, 2> stages{RecentValues(9), RecentValues(9)};  // t_C
  };
  /// What ranks told each other of calls of one kind.
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

  /// What calls of a kind near that of a call tell of it.
  struct Known {
    const Series* series = nullptr;
    double factor = 0;  // seconds that the call takes in the time of one scaled byte
    double coding = 0;  // seconds that it takes beyond that
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
