// What becomes of a training step after AllReduces that lost something: apply, skip or halt, alike
// on all ranks.
//
// The lowest live rank decides by the worst report that arrives in time. It does not wait for ranks
// that are silent on the data path, or that a report names as late. It sends its verdict to all
// ranks, and keeps it, by step, for ranks that ask later.
//
// A step is decided once, also when the decider goes. When the facts exclude every lower rank, the
// next live one is the decider: each live rank sends it all verdicts that it has, then YIELD. It
// decides only when the YIELDs of all live ranks have come, and only steps without a verdict. What
// a rank that is not live says is ignored, so that after its YIELD no rank takes a verdict of an
// earlier decider. Where a YIELD does not come nothing is decided, and the callers halt by their
// deadlines. A rank that is told two verdicts of one step halts from then on, and says so. All
// messages may be repeated: to a decider whose connection works again they are.
//
// Steps ascend. Of one below the verdicts that are kept no verdict is given: a rank that asks is
// told so, and halts.
//
// Here: budgets and verdicts, and the rules as a machine without thread, clock or socket. One
// thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/membership/facts.h"
#include "collectives/step_verdict.h"
#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

/// The last entry with from_step <= `step`; the default where there is none.
LossBudget budget_for(const std::vector<LossBudget>& budgets, std::uint64_t step);

/// The verdict by the worst of `reports`. A step is heavy when its worst report is above
/// `halt_above`; `heavy_steps` counts the heavy steps right before this one. A heavy step that is
/// the LossBudget::kStepsToHalt-th in a row halts, and so does a step without reports.
Verdict decide(const LossBudget& budget, const std::vector<LossReport>& reports, int heavy_steps);

struct AgreementMessage {
  /// Their numbers travel and never change.
  enum class Kind : std::uint8_t {
    report = 1,     // to the decider
    verdict = 2,    // of the decider, or handed to the next one
    yield = 3,      // to the next decider: this rank has said all it knows, of steps from `step` on
    forgotten = 4,  // of the decider, to a rank that is behind: no verdict below `step` is given
  };
  Kind kind = Kind::report;
  std::uint64_t step = 0;
  LossReport report;
  std::uint32_t patience_ms = 0;  // report: how long the decider may collect others
  StepVerdict verdict;
};

std::string encode(const AgreementMessage& message);
std::optional<AgreementMessage> decode_agreement(std::string_view body);

class Agreement {
 public:
  /// Verdicts kept, the newest steps.
  static constexpr std::size_t kKept = 64;

  /// `facts` outlives the rules.
  Agreement(Rank rank, const Facts& facts, std::vector<LossBudget> budgets);

  /// This rank's report of `step`; the decider may wait `patience` for those of others.
  void report(std::uint64_t step, const LossReport& report, Duration patience, Time now);

  /// The verdict of `step`, or none so far. A verdict that the decider no longer keeps reads as a
  /// halt without reporters.
  std::optional<StepVerdict> verdict(std::uint64_t step) const;

  /// A row has risen.
  void facts_changed(Time now);

  /// Sends `rank` the messages again that a broken connection may have lost: to the decider, all
  /// verdicts and reports of this rank.
  void greet(Rank rank);

  void receive(Rank from, const AgreementMessage& message, Time now);

  /// Who waits in rejoin(): goes into the verdicts to come.
  void set_rejoin(std::uint64_t ranks) { rejoin_ = ranks; }

  /// Bit r: rank r is silent on the data path. The decider does not wait for its report.
  void set_silent(std::uint64_t ranks, Time now);

  /// Decides what may not wait longer.
  void tick(Time now);
  Time next_deadline() const;

  /// Messages to send, in order.
  std::vector<std::pair<Rank, AgreementMessage>> take_outbox();

  Rank decider() const { return decider_; }

 private:
  struct Pending {
    std::uint64_t step = 0;
    std::uint64_t reporters = 0;
    std::vector<LossReport> reports;  // of the reporters, in the order in which they came
    std::vector<std::pair<Rank, std::uint64_t>> digests;  // of those that told one
    std::uint32_t own_patience_ms = 0;
    std::optional<LossReport> own;
    Time collect_until = kNever;
  };

  Pending& pending(std::uint64_t step);
  void take_report(Rank from, std::uint64_t step, const LossReport& report, Time collect_until);
  void take_verdict(const StepVerdict& verdict);
  void try_to_decide(Time now);
  int heavy_steps_before(std::uint64_t step) const;
  void keep(const StepVerdict& verdict);
  void tell_all(const StepVerdict& verdict);
  void tell_forgotten(std::uint64_t ranks);
  void yield_to_decider();
  const StepVerdict* find(std::uint64_t step) const;

  const Rank rank_;
  const Facts& facts_;
  const std::vector<LossBudget> budgets_;
  std::uint64_t yielded_;  // ranks that have handed over to this one as decider
  Rank decider_ = 0;
  std::uint64_t rejoin_ = 0;
  std::uint64_t silent_ = 0;
  std::deque<StepVerdict> kept_;
  std::uint64_t undecided_from_ = 0;  // verdicts of lower steps may have been forgotten
  std::uint64_t told_from_ = 0;       // the decider, or this rank as decider, has said so
  std::vector<Pending> pending_;
  std::string conflict_;  // two verdicts of one step were told: which
  std::vector<std::pair<Rank, AgreementMessage>> outbox_;
};

}  // namespace tarpon
