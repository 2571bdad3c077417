// What becomes of a training step that lost data: budgets, reports and verdicts of
// Communicator::agree().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/rank.h"

namespace tarpon {

/// How much of a step the network may lose, from `from_step` on: the share of all contributions
/// that the worst rank lacks. Contributions that are missing because of late ranks and void shards
/// do not count.
struct LossBudget {
  /// Steps in a row above `halt_above` that end a job. One is not enough: a rank that stood still
  /// for a moment loses most of one step, and nothing is broken.
  static constexpr int kStepsToHalt = 3;

  std::uint64_t from_step = 0;
  double skip_above = 0.05;  // the step is skipped: a gradient too far off
  double halt_above = 0.5;   // the step is skipped, and the third in a row ends the job

  /// The default budget of a job with this loss target (Mechanisms::loss_target): skips above 5 %,
  /// or above 20 loss targets if that is more.
  static LossBudget usual(double loss_target);

  bool operator==(const LossBudget&) const = default;
};

/// What one rank reports of a step: the worst of its calls. In a job of more than 64 ranks masks,
/// here and in StepVerdict, have a bit for each host in place of each rank.
struct LossReport {
  double lost_fraction = 0;  // LossCauses::of_network(); above 1, or not a number: all is lost
  bool nonfinite = false;    // an input was infinite or no number: skips the step
  std::uint64_t late = 0;    // bit r: rank r was late for a call; its report is not waited for
  std::uint64_t digest = 0;  // of this rank's model, or other data to be alike; 0: none is told
};

struct Report;

/// What a call's report means for its step. A call without a result has lost all.
LossReport loss_report(const Report& report);

/// Returns the worse of the reports of two calls of one step.
LossReport worse(const LossReport& a, const LossReport& b);

/// The numbers go over the wire and never change.
enum class Verdict : std::uint8_t { apply = 0, skip = 1, halt = 2 };

std::string_view name(Verdict verdict);

struct StepVerdict {
  Verdict verdict = Verdict::halt;
  std::uint64_t step = 0;
  double lost_fraction = 0;     // the worst of the reports that were heard
  std::uint64_t reporters = 0;  // bit r: rank r's was heard; 0: halted without a verdict
  Rank decided_by = 0;
  std::string detail;        // one line for a human; empty for apply
  std::uint64_t rejoin = 0;  // bit r: rank r waits in Communicator::rejoin(), as the decider knew
  /// bit r: rank r told another digest than the lowest rank that told one.
  std::uint64_t differing = 0;
  /// bit r: rank r has left, or its process is gone, as the decider knew: rejoin() makes a
  /// communicator without it, in which exact calls work.
  std::uint64_t gone = 0;
  /// bit r: a report that was heard names rank r as late for a call of the step.
  std::uint64_t late = 0;

  bool same(const StepVerdict& other) const {
    return verdict == other.verdict && step == other.step;
  }
};

}  // namespace tarpon
