// The rules of verdicts.
#include "collectives/membership/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

// Steps for which reports are collected at once. Ranks that take the steps in order need no more.
constexpr std::size_t kMostPending = 2 * Agreement::kKept;

/// Returns `fraction`, or 1 if it is not a number from 0 to 1.
double share(double fraction) {
  return fraction >= 0 && fraction <= 1 ? fraction : 1.0;
}

/// The ranks whose digest differs from that of the lowest rank in `digests`.
std::uint64_t differing(const std::vector<std::pair<Rank, std::uint64_t>>& digests) {
  if (digests.empty()) return 0;
  const std::uint64_t usual = std::min_element(digests.begin(), digests.end())->second;
  std::uint64_t others = 0;
  for (const auto& [rank, digest] : digests) {
    if (digest != usual) others |= bit(rank);
  }
  return others;
}

std::string explain(const StepVerdict& verdict, const LossBudget& budget) {
  if (verdict.verdict == Verdict::apply) return {};
  if (verdict.verdict == Verdict::halt) {
    return fmt::format(
        "the worst rank lost {:.2f} %, above the halt budget of {:.2f} % in {} steps in a row",
        verdict.lost_fraction * 100, budget.halt_above * 100, LossBudget::kStepsToHalt);
  }
  if (verdict.lost_fraction <= budget.skip_above) {
    return "a rank's input was infinite or not a number";
  }
  return fmt::format("the worst rank lost {:.2f} %, above the skip budget of {:.2f} %",
                     verdict.lost_fraction * 100, budget.skip_above * 100);
}

AgreementMessage saying(const StepVerdict& verdict) {
  AgreementMessage message;
  message.kind = AgreementMessage::Kind::verdict;
  message.step = verdict.step;
  message.verdict = verdict;
  return message;
}

AgreementMessage about_steps(AgreementMessage::Kind kind, std::uint64_t from) {
  AgreementMessage message;
  message.kind = kind;
  message.step = from;
  return message;
}

}  // namespace

LossReport worse(const LossReport& a, const LossReport& b) {
  return {std::max(share(a.lost_fraction), share(b.lost_fraction)), a.nonfinite || b.nonfinite,
          a.late | b.late, a.digest != 0 ? a.digest : b.digest};
}

LossBudget budget_for(const std::vector<LossBudget>& budgets, std::uint64_t step) {
  const LossBudget* best = nullptr;
  for (const LossBudget& one : budgets) {
    if (one.from_step <= step && (best == nullptr || best->from_step <= one.from_step)) best = &one;
  }
  return best == nullptr ? LossBudget{} : *best;
}

Verdict decide(const LossBudget& budget, const std::vector<LossReport>& reports, int heavy_steps) {
  if (reports.empty()) return Verdict::halt;
  double worst = 0;
  bool nonfinite = false;
  for (const LossReport& report : reports) {
    worst = std::max(worst, share(report.lost_fraction));
    nonfinite |= report.nonfinite;
  }
  const bool heavy = worst > budget.halt_above;
  if (heavy && heavy_steps + 1 >= LossBudget::kStepsToHalt) return Verdict::halt;
  return heavy || worst > budget.skip_above || nonfinite ? Verdict::skip : Verdict::apply;
}

Agreement::Agreement(Rank rank, const Facts& facts, std::vector<LossBudget> budgets)
    : rank_(rank),
      facts_(facts),
      budgets_(std::move(budgets)),
      yielded_(rank == 0 ? facts.live() : bit(rank)) {}

const StepVerdict* Agreement::find(std::uint64_t step) const {
  for (const StepVerdict& one : kept_) {
    if (one.step == step) return &one;
  }
  return nullptr;
}

std::optional<StepVerdict> Agreement::verdict(std::uint64_t step) const {
  if (!conflict_.empty()) {
    StepVerdict halted;
    halted.step = step;
    halted.detail = conflict_;
    return halted;
  }
  if (const StepVerdict* known = find(step)) return *known;
  if (step >= told_from_) return std::nullopt;
  StepVerdict halted;
  halted.step = step;
  halted.detail = fmt::format(
      "the verdict of step {} is forgotten: this rank is more than {} steps behind", step, kKept);
  return halted;
}

Agreement::Pending& Agreement::pending(std::uint64_t step) {
  for (Pending& one : pending_) {
    if (one.step == step) return one;
  }
  if (pending_.size() == kMostPending) {
    pending_.erase(
        std::min_element(pending_.begin(), pending_.end(),
                         [](const Pending& a, const Pending& b) { return a.step < b.step; }));
  }
  pending_.emplace_back().step = step;
  return pending_.back();
}

void Agreement::report(std::uint64_t step, const LossReport& report, Duration patience, Time now) {
  if (find(step) != nullptr) return;
  Pending& one = pending(step);
  one.own = report;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(patience).count();
  one.own_patience_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 0, UINT32_MAX));
  one.repeat_after = kFirstRepeat;
  one.repeat_at = now + kFirstRepeat;
  if (decider_ == rank_) {
    take_report(rank_, step, report, after(now, patience));
    try_to_decide(now);
    return;
  }
  if (asks()) send_report(one, Carrier::both);
}

void Agreement::give_up(std::uint64_t step) {
  for (Pending& one : pending_) {
    if (one.step == step) one.repeat_at = kNever;
  }
}

/// Whether another rank decides on what this rank reports.
bool Agreement::asks() const {
  return decider_ != rank_ && decider_ < facts_.world_size() && facts_.is_live(rank_);
}

/// Sends this rank's report to the decider. REQUIRES: asks(), and there is one.
void Agreement::send_report(const Pending& one, Carrier carrier) {
  AgreementMessage message = about_steps(AgreementMessage::Kind::report, one.step);
  message.report = *one.own;
  message.patience_ms = one.own_patience_ms;
  outbox_.push_back({decider_, carrier, std::move(message)});
}

void Agreement::repeat_reports(Time now) {
  if (!asks()) return;
  for (Pending& one : pending_) {
    if (now < one.repeat_at) continue;
    send_report(one, Carrier::datagram);
    one.repeat_after = std::min(2 * one.repeat_after, kMostRepeat);
    one.repeat_at = now + one.repeat_after;
  }
}

void Agreement::take_report(Rank from, std::uint64_t step, const LossReport& report,
                            Time collect_until) {
  Pending& one = pending(step);
  one.collect_until = std::min(one.collect_until, collect_until);
  if ((one.reporters & bit(from)) != 0) return;
  one.reporters |= bit(from);
  one.reports.push_back(report);
  if (report.digest != 0) one.digests.emplace_back(from, report.digest);
}

void Agreement::receive(Rank from, const AgreementMessage& message, Carrier by, Time now) {
  if (!facts_.is_live(from)) return;
  const bool datagram = by == Carrier::datagram;
  switch (message.kind) {
    case AgreementMessage::Kind::report:
      if (datagram && decider_ != rank_) return;
      if (const StepVerdict* known = find(message.step)) {
        outbox_.push_back({from, by, saying(*known)});
        return;
      }
      take_report(from, message.step, message.report,
                  now + std::chrono::milliseconds(message.patience_ms));
      break;
    case AgreementMessage::Kind::verdict:
      take_verdict(message.verdict, datagram);
      break;
    case AgreementMessage::Kind::yield:
      if (datagram) return;
      yielded_ |= bit(from);
      undecided_from_ = std::max(undecided_from_, message.step);
      break;
    case AgreementMessage::Kind::forgotten:
      if (datagram) return;
      told_from_ = std::max(told_from_, message.step);
      std::erase_if(pending_, [this](const Pending& one) { return one.step < told_from_; });
      break;
  }
  try_to_decide(now);
}

/// Keeps a verdict of another rank. The next decider passes it on, since others may lack it.
/// `datagram`: it has come without its text.
void Agreement::take_verdict(StepVerdict verdict, bool datagram) {
  if (const StepVerdict* known = find(verdict.step)) {
    if (known->same(verdict) || !conflict_.empty()) return;
    conflict_ = fmt::format("step {} was decided {} by rank {} and {} by rank {}: replicas differ",
                            verdict.step, name(known->verdict), known->decided_by,
                            name(verdict.verdict), verdict.decided_by);
    tell_all(*known);  // the others learn of it too
    return;
  }
  if (datagram) verdict.detail = explain(verdict, budget_for(budgets_, verdict.step));
  // A rank that has reported to this one waits for it, even if this rank does not know yet that it
  // is the decider.
  const bool asked = std::any_of(pending_.begin(), pending_.end(), [&](const Pending& one) {
    return one.step == verdict.step && !one.reports.empty();
  });
  keep(verdict);
  if (asked || decider_ == rank_) tell_all(verdict);
}

void Agreement::keep(const StepVerdict& verdict) {
  std::erase_if(pending_, [&](const Pending& one) { return one.step == verdict.step; });
  kept_.push_back(verdict);
  if (kept_.size() <= kKept) return;
  const auto oldest =
      std::min_element(kept_.begin(), kept_.end(),
                       [](const StepVerdict& a, const StepVerdict& b) { return a.step < b.step; });
  undecided_from_ = std::max(undecided_from_, oldest->step + 1);
  kept_.erase(oldest);
}

void Agreement::tell_all(const StepVerdict& verdict) {
  for (Rank peer = 0; peer < facts_.world_size(); ++peer) {
    if (peer == rank_ || !facts_.is_live(peer)) continue;
    outbox_.push_back({peer, Carrier::both, saying(verdict)});
  }
}

void Agreement::facts_changed(Time now) {
  if (facts_.decider() != decider_) {
    decider_ = facts_.decider();
    yield_to_decider();
    if (decider_ == rank_) {
      for (Pending& one : pending_) {
        if (!one.own) continue;
        take_report(rank_, one.step, *one.own,
                    now + std::chrono::milliseconds(one.own_patience_ms));
      }
    }
  }
  try_to_decide(now);
}

void Agreement::greet(Rank rank) {
  if (rank == decider_) yield_to_decider();
}

/// Sends all verdicts that this rank has, then YIELD, then its reports of undecided steps.
void Agreement::yield_to_decider() {
  if (!asks()) return;
  for (const StepVerdict& known : kept_) {
    outbox_.push_back({decider_, Carrier::stream, saying(known)});
  }
  outbox_.push_back(
      {decider_, Carrier::stream, about_steps(AgreementMessage::Kind::yield, undecided_from_)});
  for (const Pending& one : pending_) {
    if (one.own) send_report(one, Carrier::both);
  }
}

void Agreement::try_to_decide(Time now) {
  if (decider_ != rank_ || (facts_.live() & ~yielded_) != 0) return;
  for (std::size_t i = 0; i < pending_.size();) {
    const Pending& one = pending_[i];
    if (one.step < undecided_from_) {  // its verdict may be among those forgotten
      tell_forgotten(one.reporters);
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    std::uint64_t late = 0;
    for (const LossReport& report : one.reports) late |= report.late;
    // A rank that waits in rejoin() reports no step any more.
    const bool all = (facts_.live() & ~silent_ & ~late & ~rejoin_ & ~one.reporters) == 0;
    if (one.reports.empty() || (!all && now < one.collect_until)) {
      ++i;
      continue;
    }
    const LossBudget budget = budget_for(budgets_, one.step);
    StepVerdict verdict;
    verdict.verdict = decide(budget, one.reports, heavy_steps_before(one.step));
    verdict.step = one.step;
    verdict.reporters = one.reporters;
    verdict.decided_by = rank_;
    verdict.rejoin = rejoin_;
    verdict.differing = differing(one.digests);
    verdict.late = late;
    verdict.gone = gone_ | facts_.ranks(Standing::left);
    for (const LossReport& report : one.reports) {
      verdict.lost_fraction = std::max(verdict.lost_fraction, share(report.lost_fraction));
    }
    verdict.detail = explain(verdict, budget);
    keep(verdict);  // removes it from pending_
    tell_all(verdict);
  }
}

/// Tells `ranks` that no verdict will come for a step that they reported.
void Agreement::tell_forgotten(std::uint64_t ranks) {
  told_from_ = undecided_from_;
  for (Rank peer = 0; peer < facts_.world_size(); ++peer) {
    if (peer == rank_ || (ranks & bit(peer)) == 0) continue;
    outbox_.push_back(
        {peer, Carrier::stream, about_steps(AgreementMessage::Kind::forgotten, undecided_from_)});
  }
}

/// Counts the heavy steps in a row that were decided right before `step`, up to kStepsToHalt.
int Agreement::heavy_steps_before(std::uint64_t step) const {
  int heavy = 0;
  for (std::uint64_t next = step; heavy < LossBudget::kStepsToHalt; ++heavy) {
    const StepVerdict* before = nullptr;
    for (const StepVerdict& one : kept_) {
      if (one.step < next && (before == nullptr || one.step > before->step)) before = &one;
    }
    if (before == nullptr) break;
    if (!(before->lost_fraction > budget_for(budgets_, before->step).halt_above)) break;
    next = before->step;
  }
  return heavy;
}

void Agreement::set_rejoin(std::uint64_t ranks, Time now) {
  rejoin_ = ranks;
  try_to_decide(now);
}

void Agreement::note_gone(Rank rank) {
  gone_ |= bit(rank);
}

void Agreement::set_silent(std::uint64_t ranks, Time now) {
  silent_ = ranks;
  try_to_decide(now);
}

void Agreement::tick(Time now) {
  try_to_decide(now);
  repeat_reports(now);
}

Time Agreement::next_deadline() const {
  Time next = kNever;
  if (asks()) {
    for (const Pending& one : pending_) next = std::min(next, one.repeat_at);
  }
  if (decider_ != rank_ || (facts_.live() & ~yielded_) != 0) return next;
  for (const Pending& one : pending_) {
    if (!one.reports.empty()) next = std::min(next, one.collect_until);
  }
  return next;
}

std::vector<Agreement::Outgoing> Agreement::take_outbox() {
  return std::exchange(outbox_, {});
}

}  // namespace tarpon
