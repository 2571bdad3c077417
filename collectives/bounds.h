// How long the stages of a bounded AllReduce may take: learnt from those before it.
//
// t_B, the hard bound, and t_C, the usual time, follow the operations of a size class (sizes within
// a factor of two), scaled by bytes. What this rank saw is the median of its last samples; what the
// operation is expected to take is the median over ranks, which exchange theirs in the headers. The
// bound is above the longest of the last 20, at most four times what is expected.
//
// After OptiReduce (NSDI'25), section on UBT: its bound is the 95th percentile of 20 exact
// operations, its early close waits x % of t_C after all tail marks, x doubles above 0.1 % of loss
// and falls by one point below 0.01 %. Rule::per_byte differs in three things, each because of what
// was measured: the bound follows the operations (after OptiNIC's per-byte cost): the scatter has
// what it usually takes and the operation's margin, the gather the rest of the operation, at least
// half of it, since what waited for a straggler goes out only then; x follows what came after an
// early close, since waiting longer cannot bring back what was dropped; the margin follows what the
// bound itself cut off.
//
// A rank that is dead or suspect teaches nothing: operations leave it out, and what was learnt
// while it was silent already and nobody knew is forgotten.
//
// Not thread-safe. No clock inside.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "collectives/allreduce.h"
#include "transport/endpoint.h"
#include "transport/time.h"

namespace tarpon {

/// What one stage of an operation is given.
struct StageBounds {
  std::array<Duration, 2> bound{};  // per stage
  std::array<Duration, 2> early{};  // silence after the last tail; zero: wait for the bound
  std::uint16_t stage_time = 0;     // what this rank expects, for its peers: units of 16 us
};

/// What came of an operation here.
struct BoundSample {
  std::uint64_t bytes = 0;            // of the bucket
  std::array<Duration, 2> elapsed{};  // from its start to the end of each stage
  std::array<Closing, 2> closing{};
  std::array<double, 2> received{1, 1};  // share of what was to come in each stage, but for ranks
                                         // that were absent from the beginning
  std::uint64_t silent = 0;              // bit r: nothing came of rank r, which was not absent
  bool bounded = false;
  double packets = 0;  // that came
  double late = 0;     // share of them that came after their stage's end
};

class Bounds {
 public:
  /// `x_loop`: whether the wait of an early close adapts.
  explicit Bounds(std::uint16_t world_size, bool x_loop = true);

  /// Operations with lower numbers run exact under `rule`, alike on all ranks.
  static std::uint32_t calibration(BoundRule rule);

  /// `left`: until the deadline; `given`: the caller's bound, if any.
  StageBounds plan(BoundRule rule, std::optional<Duration> given, std::uint64_t bytes,
                   Duration left) const;

  /// An operation is over; exact ones calibrate.
  void learn(const BoundSample& sample, BoundRule rule);

  /// What a peer expects an operation of `bytes` to take.
  void heard(Rank peer, std::uint64_t bytes, std::uint16_t stage_time);

  /// `rank` is dead or suspect: what was learnt since its last sign is forgotten.
  void absent(Rank rank);

  /// Share of t_C that an early close waits: 0.01 to 0.5.
  double patience() const { return learnt_.patience; }
  /// What the per-byte bound adds to the expected time, as a share of it.
  double margin() const { return learnt_.margin; }

 private:
  struct SizeClass {
    std::array<std::deque<double>, 2> samples;  // seconds per byte, the latest ones, by stage
    std::vector<double> calibration;            // whole operation, seconds per byte
    std::vector<double> peers;                  // as each last said; 0: unknown
  };
  struct Learnt {
    std::array<SizeClass, 64> classes;
    double patience = 0.10;
    double margin = 0.15;
    double cut = 0;  // average share that bounds cut off
  };
  struct Expected {
    double first = 0, whole = 0;  // seconds: to the end of stage 1, of the operation
    double longer = 0;            // share of it that the longest took more, lately
  };

  std::optional<Expected> expected(std::uint64_t bytes) const;
  std::optional<double> percentile_of_calibration(std::uint64_t bytes) const;
  const SizeClass* class_for(std::uint64_t bytes) const;
  void note_silent(std::uint64_t ranks);
  void adapt(const BoundSample& sample, BoundRule rule);
  void adapt_patience(double trouble, double packets);

  const std::uint16_t world_size_;
  const bool x_loop_;
  Learnt learnt_;
  std::uint64_t silent_ = 0;      // ranks of which nothing has come for some operations
  std::optional<Learnt> before_;  // them
};

}  // namespace tarpon
