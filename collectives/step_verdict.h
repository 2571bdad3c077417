// What becomes of a training step that lost data: budgets, reports and verdicts of
// Communicator::agree().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/rank.h"

namespace tarpon {

/// From `from_step` on: how much may be lost, as the worst rank's share of contributions.
struct LossBudget {
  std::uint64_t from_step = 0;
  double skip_above = 0.05;  // the step is skipped: a gradient too far off
  double halt_above = 0.5;   // the job should stop: something is broken
  bool operator==(const LossBudget&) const = default;
};

/// What one rank says of a step: the worst of its calls.
struct LossReport {
  double lost_fraction = 0;  // Report::lost_fraction; above 1, or not a number: all is lost
  bool nonfinite = false;    // an input was infinite or no number: skips the step
  std::uint64_t late = 0;    // bit r: rank r was late for a call; its report is not waited for
  std::uint64_t digest = 0;  // of this rank's model, or whatever is to be alike; 0: none is told
};

struct Report;

/// What a call's report means for its step.
LossReport loss_report(const Report& report);

/// Of two calls of one step.
LossReport worse(const LossReport& a, const LossReport& b);

/// Their numbers travel and never change.
enum class Verdict : std::uint8_t { apply = 0, skip = 1, halt = 2 };

std::string_view name(Verdict verdict);

struct StepVerdict {
  Verdict verdict = Verdict::halt;
  std::uint64_t step = 0;
  double lost_fraction = 0;     // the worst of the reports that were heard
  std::uint64_t reporters = 0;  // bit r: rank r's report was; 0: halted without a verdict
  Rank decided_by = 0;
  std::string detail;        // one line for a human; empty for apply
  std::uint64_t rejoin = 0;  // bit r: rank r waits in Communicator::rejoin(), as the decider knew
  /// bit r: rank r told another digest than the lowest rank that told one.
  std::uint64_t differing = 0;

  bool same(const StepVerdict& other) const {
    return verdict == other.verdict && step == other.step;
  }
};

}  // namespace tarpon
