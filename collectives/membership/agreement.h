// Decides what all ranks do with a training step whose AllReduces lost data: apply, skip or halt.
//
// The lowest live rank decides by the worst report that arrives in time. It does not wait for ranks
// that are silent on the data path, or that a report names as late. It sends its verdict to all
// ranks, and keeps it, by step, for ranks that ask later.
//
// A step is decided once, even if the decider is excluded. When the facts exclude every lower rank,
// the next live one is the decider: each live rank sends it all verdicts that it has, then YIELD.
// It decides only when the YIELDs of all live ranks have arrived, and only steps without a verdict.
// Messages of ranks that are not live are ignored, so a rank accepts no verdict of an earlier
// decider after its YIELD. If a YIELD does not arrive, nothing is decided, and the callers halt at
// their deadlines. A rank that receives two verdicts of one step halts from then on, and tells the
// others. All messages may be repeated, and are when the connection to the decider works again.
//
// There are two carriers: the streams of the control mesh, where a lost packet costs 200 ms, and
// datagrams, which may come late, twice or not at all. Reports and verdicts go by both. A rank
// repeats its report by datagram until it has the verdict; the decider answers the report of a
// decided step by the carrier that it came by. The argument above rests on the order of a stream:
// facts, then verdicts, then YIELD. So YIELD, the verdicts before it, and the news that a verdict
// is forgotten go by stream alone. A report may overtake the facts that made its receiver the
// decider, so a report by datagram counts only at a rank that knows itself as the decider. A
// verdict by datagram counts as by stream: while its sender is live here.
//
// Steps ascend. No verdict is given for a step below the kept ones: a rank that asks for it is told
// so, and halts.
//
// This file has budgets and verdicts, and the rules as a state machine without thread, clock or
// socket. One thread at a time.
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
#include "transport/agreement_packet.h"
#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

/// Returns the entry with the highest from_step <= `step`, or the default if there is none.
LossBudget budget_for(const std::vector<LossBudget>& budgets, std::uint64_t step);

/// Decides by the worst of `reports`. A step is heavy when its worst report is above
/// `halt_above`; `heavy_steps` counts the heavy steps right before this one. A heavy step that is
/// the LossBudget::kStepsToHalt-th in a row halts, and so does a step without reports.
Verdict decide(const LossBudget& budget, const std::vector<LossReport>& reports, int heavy_steps);

struct AgreementMessage {
  /// The numbers are part of the wire format and never change.
  enum class Kind : std::uint8_t {
    report = 1,     // to the decider
    verdict = 2,    // from the decider, or passed on to the next one
    yield = 3,      // to the next decider: the sender has sent all verdicts from `step` on
    forgotten = 4,  // from the decider, to a rank that is behind: no verdict below `step` is given
  };
  Kind kind = Kind::report;
  std::uint64_t step = 0;
  LossReport report;
  std::uint32_t patience_ms = 0;  // report: how long the decider may wait for other reports
  StepVerdict verdict;
};

/// For streams.
std::string encode(const AgreementMessage& message);
/// Empty for bytes that no encode() of a rank of `world_size` ranks makes.
std::optional<AgreementMessage> decode_agreement(std::string_view body, std::uint32_t world_size);

/// For datagrams: without the text of the verdict, which Agreement::receive() makes anew from the
/// numbers.
AgreementPayload pack(const AgreementMessage& message);
/// Empty for a payload that no pack() of a rank of `world_size` ranks makes.
std::optional<AgreementMessage> unpack(const AgreementPayload& payload, std::uint32_t world_size);

class Agreement {
 public:
  /// Number of verdicts kept: those of the newest steps.
  static constexpr std::size_t kKept = 64;
  /// A report is repeated after this time, then after twice as long each time, up to kMostRepeat.
  static constexpr Duration kFirstRepeat = 2ms;
  static constexpr Duration kMostRepeat = 50ms;

  enum class Carrier : std::uint8_t { stream, datagram, both };

  struct Outgoing {
    Rank to = 0;
    Carrier carrier = Carrier::stream;
    AgreementMessage message;
  };

  /// `facts` outlives this object.
  Agreement(Rank rank, const Facts& facts, std::vector<LossBudget> budgets);

  /// Sends this rank's report of `step` to the decider, which may wait `patience` for the reports
  /// of other ranks. Repeats it until the verdict is here, or until give_up().
  void report(std::uint64_t step, const LossReport& report, Duration patience, Time now);
  /// Ends the repeats: this rank waits for the verdict of `step` no longer.
  void give_up(std::uint64_t step);

  /// Returns the verdict of `step`, or nullopt if there is none yet. A verdict that the decider no
  /// longer keeps reads as a halt without reporters.
  std::optional<StepVerdict> verdict(std::uint64_t step) const;

  /// Whether no verdict of `step` has come. A step below the kept ones may have had one.
  bool may_lack(std::uint64_t step) const {
    return step >= undecided_from_ && find(step) == nullptr;
  }

  /// Acts upon a row that has risen.
  void facts_changed(Time now);

  /// Resends to `rank` the messages that a broken connection may have lost: to the decider, all
  /// verdicts and reports of this rank.
  void greet(Rank rank);

  /// `by`: stream or datagram.
  void receive(Rank from, const AgreementMessage& message, Carrier by, Time now);

  /// Sets the ranks that wait in rejoin(), which report no step: later verdicts carry them.
  void set_rejoin(std::uint64_t ranks, Time now);

  /// Notes that the process of `rank` is gone. Later verdicts name it.
  void note_gone(Rank rank);

  /// Sets the ranks that are silent on the data path (bit r: rank r). The decider does not wait for
  /// their reports.
  void set_silent(std::uint64_t ranks, Time now);

  /// Decides the steps that may not wait longer, and repeats reports.
  void tick(Time now);
  Time next_deadline() const;

  /// Returns the messages to send, in order, and removes them.
  std::vector<Outgoing> take_outbox();

  Rank decider() const { return decider_; }

 private:
  struct Pending {
    std::uint64_t step = 0;
    std::uint64_t reporters = 0;
    std::vector<LossReport> reports;  // of the reporters, in the order of arrival
    std::vector<std::pair<Rank, std::uint64_t>> digests;  // of the reporters that sent one
    std::uint32_t own_patience_ms = 0;
    std::optional<LossReport> own;
    Time collect_until = kNever;
    Time repeat_at = kNever;  // `own`
    Duration repeat_after = kFirstRepeat;
  };

  Pending& pending(std::uint64_t step);
  void take_report(Rank from, std::uint64_t step, const LossReport& report, Time collect_until);
  void take_verdict(StepVerdict verdict, bool datagram);
  void try_to_decide(Time now);
  int heavy_steps_before(std::uint64_t step) const;
  void keep(const StepVerdict& verdict);
  bool asks() const;
  void send_report(const Pending& one, Carrier carrier);
  void repeat_reports(Time now);
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
  std::uint64_t gone_ = 0;  // ranks whose processes are gone
  std::uint64_t silent_ = 0;
  std::deque<StepVerdict> kept_;
  std::uint64_t undecided_from_ = 0;  // verdicts of lower steps may have been forgotten
  // Lower steps get no verdict: the decider has said so, or this rank decides.
  std::uint64_t told_from_ = 0;
  std::vector<Pending> pending_;
  std::string conflict_;  // describes two different verdicts of one step; empty: there are none
  std::vector<Outgoing> outbox_;
};

}  // namespace tarpon
