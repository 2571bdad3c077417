// Which shares calls run with, by measurements of earlier calls: the rule of learnt shares.
//
// Calls come in rounds, and after each round every rank's measurements reach all ranks. The rule
// has shares that it keeps (at first even ones), and tries others for one round:
//
// - the shares that suit the measured rates, where the model says that calls would be at least 5 %
//   shorter (Shares::for_speeds). They are kept if at least half of that is measured. Links that
//   others use too give way, and the trial shows nothing: even shares stay. A rank that begins late
//   in two rounds in turn counts like a slow link: it owns less, or nothing. While a rank is late,
//   the plan takes no new rates: the others' rates say how fast the late rank sends. It keeps the
//   rates from before. If there are none, links count as equal.
// - where the kept shares are not even, shares halfway to even ones. A link that has recovered
//   shows only when it is asked for more. They are kept unless calls were 2 % longer.
//
// After a trial that failed, the next one of its kind waits 4, 8, 16, ... 64 rounds, and so does
// the first step back to even shares. None waits where calls have become 5 % shorter since, or
// where a rank has become late or on time. A trial in which a rank is late for the first time, or
// no longer, is repeated.
//
// No thread, clock or socket. Ranks that get the same measurements have the same shares. A rank may
// miss a round that others got. Each rank tells in its samples which rounds its shares come from.
// Where these differ, every rank that sees it begins anew with even shares. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/shares.h"

namespace tarpon {

/// What one rank measured in a round. Units of bytes and time are alike on all ranks. 0: nothing.
struct ShareSample {
  double rate = 0;            // of its busy link: bytes a unit of time
  double time_a_byte = 0;     // of a call: from its start at this rank, for a byte of the bucket
  double lag_a_byte = 0;      // how much later than half of the ranks it began, likewise
  std::uint64_t history = 0;  // SharePlan::history() at that rank
};

class SharePlan {
 public:
  /// REQUIRES: ranks is 3 to Shares::kMostRanks.
  explicit SharePlan(std::uint32_t ranks);

  /// Returns the shares of the calls of the next round.
  Shares shares() const;

  /// Takes what the ranks measured in the round that has ended, by rank. The shortest time counts:
  /// the rank that came last waited for no other one. Changes nothing if a rank measured nothing.
  void end_round(std::span<const ShareSample> samples);

  /// Returns a hash of all that the shares follow from.
  std::uint64_t history() const { return history_; }

 private:
  using Weights = std::vector<double>;  // by rank; their sum is 1

  enum class Kind : std::uint8_t { faster, evener };
  struct Trial {
    Kind kind = Kind::faster;
    double limit = 1;  // of the kept shares' time: the trial fails above
    Weights weights;
  };
  /// When trials of one kind may begin.
  struct Patience {
    int failures = 0;
    int rounds_left = 0;     // before the next trial
    double failed_time = 0;  // of the kept shares, when the last trial failed
    void fail(double time);
    /// Conditions have changed: a trial may follow at once.
    void begin_again();
    /// Counts a round with the kept shares, which took `time`. Returns whether a trial may follow.
    bool over(double time);
  };

  void begin_anew(std::span<const ShareSample> samples);
  void remember(std::span<const ShareSample> samples);
  Patience& patience(Kind kind) { return patience_[static_cast<std::size_t>(kind)]; }
  void judge(double time);
  bool learn_lags(double time, std::span<const ShareSample> samples);
  void learn(double time, std::span<const ShareSample> samples);
  std::optional<Trial> next_trial();
  std::vector<double> leads() const;
  std::vector<double> link_rates() const;
  double model(const Weights& weights) const;
  bool is_even(const Weights& weights) const;

  double even_part_;
  Weights kept_;
  double kept_time_ = 0;       // of the latest rounds; 0: not measured
  std::vector<double> rates_;  // the same, by rank
  std::vector<double> lags_;   // by rank: how late it is; the shorter lag of the latest two rounds
  std::vector<double> latest_lags_;  // by rank: of the latest round
  bool late_ = false;                // a rank is late
  bool changed_ = false;             // a rank has become late or on time since learn()
  std::optional<Trial> trial_;
  std::array<Patience, 2> patience_{};
  std::uint64_t history_ = 0;
};

}  // namespace tarpon
