// The oracles: which promises a call of a simulated job has broken.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "collectives/schedule.h"
#include "collectives/sender_loss.h"
#include "tools/coded_reference.h"
#include "tools/fnv.h"
#include "tools/reference.h"
#include "tools/simulation_call.h"

namespace tarpon {
namespace {

// A receive buffer that the initial credit of all peers cannot fill.
constexpr std::uint64_t kRoomyBuffer = 1 << 20;

class Judge {
 public:
  Judge(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result)
      : plan_(plan), call_(call), result_(result) {}

  void run() {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (!ended(rank)) {
        if (plan_.crashes() && rank == plan_.victim) continue;
        return violate(rank, "did not end");
      }
      judge_end(rank);
    }
    if (call_.bounded || call_.mismatched) return;
    with_element_type(call_.type, [&](auto zero) { judge_exact<decltype(zero)>(); });
  }

 private:
  void violate(Rank rank, const std::string& what) {
    result_.violations.push_back(fmt::format(
        "tag {} {} {} ({} {} x {}) rank {}: {}", call_.tag, call_.live ? "live call" : "call",
        call_.number, name(call_.function), name(call_.type), call_.count, rank, what));
  }

  bool ended(Rank rank) const { return call_.pending[rank] && call_.pending[rank]->done; }

  bool on(FaultKind kind) const { return has(plan_.on, kind); }

  void judge_end(Rank rank) {
    const Report& report = call_.pending[rank]->report;
    ++result_.calls;
    ++result_.statuses[static_cast<std::size_t>(report.status)];
    if (report.status == Status::partial) ++result_.partial;
    if (has_result(report)) fnv_mix(result_.trace_hash, call_.outputs[rank]);
    judge_time(rank, report);
    if (!may_end(rank, report.status)) {
      violate(rank, fmt::format("{}: {}", name(report.status), report.detail));
    }
    judge_blame(rank, report);
    if (const std::string wrong = judge_accounts(plan_, call_, rank); !wrong.empty()) {
      violate(rank, fmt::format("{}: {}", name(report.status), wrong));
    }
    if (has_result(report) && call_.bounded && !call_.mismatched) {
      judge_nonfinite(rank, report);
      report.nonfinite ? judge_all_nan(rank, report) : judge_bounded(rank, report);
    }
  }

  /// Whoever does not know of NaN or infinity has nothing of the rank that had some.
  void judge_nonfinite(Rank rank, const Report& report) {
    for (const Rank named : report.nonfinite_ranks) {
      if (named != plan_.victim) violate(rank, fmt::format("rank {} had nothing infinite", named));
    }
    const bool found = call_.nonfinite && (plan_.mechanisms.nonfinite || report.coded);
    if (report.nonfinite) {
      if (!found) violate(rank, "nothing was infinite");
      return;
    }
    if (!found) return;
    for (const ContributorRun& run :
         runs_of(report, positions_of(report, call_.count), plan_.ranks)) {
      if ((run.contributors >> plan_.victim & 1) == 0) continue;
      return violate(rank, "does not know of the infinite input that its result holds");
    }
  }

  void judge_all_nan(Rank rank, const Report& report) {
    if (report.nonfinite_ranks.empty() && !plan_.on.any()) violate(rank, "names nobody");
    for (std::uint64_t i = 0; i < call_.count; ++i) {
      const auto got = element_at<float>(call_.outputs[rank], i);
      if (!std::isnan(got)) return violate(rank, fmt::format("element {} is {}, not NaN", i, got));
    }
  }

  static bool has_result(const Report& report) {
    return report.status == Status::complete || report.status == Status::partial ||
           report.status == Status::late_self;
  }

  void judge_time(Rank rank, const Report& report) {
    const bool victim = rank == plan_.victim;
    const Duration took = call_.ended[rank] - call_.submitted[rank];
    // A rank that does not run cannot end anything. 500 ppm of 10 s are 5 ms. Time goes on by
    // steps, and what begins at its deadline ends a step later.
    Duration asleep = 1us + paused(rank);
    if (victim) {
      asleep += plan_.pause.length() + 2 * plan_.slow_period + (plan_.drift_ppm != 0 ? 6ms : 0ms);
    }
    if (took > kSimulationDeadline + asleep) {
      const auto late = std::chrono::duration<double, std::milli>(took - kSimulationDeadline);
      violate(rank,
              fmt::format("{}: ended {} ms after its deadline", name(report.status), late.count()));
    }
    const bool gone = report.status == Status::peer_dead || report.status == Status::evicted;
    if (call_.live && gone && took > 1ms) {
      violate(rank, "did not end at once, though a rank is gone");
    }
    if (report.mode != Mode::bounded || plan_.calls_per_tag != 1 || call_.mismatched) return;
    // Who was late fetches under its deadline.
    if ((victim && disturbs_victim()) || report.status == Status::late_self) return;
    if (!plan_.pauses.empty()) return;
    // Until half of the ranks are heard, two bounds, an eighth for confirmations. Where the first
    // announcements are lost, hearing may take a few repetitions.
    const Duration hearing = plan_.skew + (calm_packets() ? 2ms : 500ms);
    const Duration most = (hearing + 2 * plan_.bound) * 9 / 8;
    if (!delays_all() && report.elapsed > most) {
      violate(rank, fmt::format("took {} us", report.elapsed / 1us));
    }
  }

  /// By a trace.
  Duration paused(Rank rank) const {
    Duration sum{};
    for (const auto& [who, window] : plan_.pauses) sum += who == rank ? window.length() : 0ms;
    return sum;
  }

  /// Faults that only the victim's packets and times can suffer from.
  bool disturbs_victim() const {
    return on(FaultKind::partition) || on(FaultKind::one_way) || on(FaultKind::jam) ||
           on(FaultKind::pause) || on(FaultKind::slow_rank) || on(FaultKind::clock_jump);
  }

  /// Nothing happens to anybody's packets but the victim's.
  bool calm_packets() const {
    return !plan_.faults.any() && !plan_.links && !on(FaultKind::mask) &&
           !on(FaultKind::starved_buffers) && plan_.receive_bytes >= kRoomyBuffer;
  }

  /// Links on which announcing itself may take as long as it likes.
  bool delays_all() const { return plan_.links.has_value(); }

  /// Exact calls wait for so long that their deadlines may come first.
  bool may_expire() const {
    Duration trouble = plan_.cut.length() + plan_.jam.length() + plan_.pause.length();
    for (Rank r = 0; r < plan_.ranks; ++r) trouble += paused(r);
    // A burst of loss counts packets, not time: one of more than 7 on average may take all that is
    // asked for again and again.
    constexpr double kLeavesLongBurst = 0.15;
    const bool long_bursts =
        plan_.links && plan_.links->ingress.burst_loss_leave < kLeavesLongBurst;
    return on(FaultKind::clock_jump) || long_bursts || trouble > kSimulationDeadline * 4 / 5;
  }

  /// What bounds are learnt from may leave later calls too little time to hear anybody.
  bool queues_behind_exact() const {
    return plan_.queues() && plan_.bound_rule != BoundRule::given;
  }

  bool may_end(Rank rank, Status status) const {
    if (call_.live) return status == live_status(rank);
    switch (status) {
      case Status::complete:
        // A bounded call of nothing waits for nobody.
        return !call_.mismatched || (call_.bounded && call_.pending[rank]->arguments.count == 0);
      case Status::partial:
      case Status::late_self:
        return call_.bounded;
      case Status::peer_late:
        if (call_.bounded && paused(rank) > Duration{}) return true;
        if (call_.bounded && rank == plan_.victim && disturbs_victim()) return true;
        if (call_.bounded && !queues_behind_exact()) return false;
        return may_expire();
      case Status::mismatch:
        return call_.mismatched;
      case Status::aborted:
        // A call that expires in the queue is given up for its peers as well.
        return on(FaultKind::abort) || call_.mismatched || (plan_.queues() && may_expire());
      case Status::peer_dead:
        return plan_.crashes() && !call_.bounded && rank != plan_.victim;
      case Status::evicted:
        return on(FaultKind::evict) && (!call_.bounded || rank == plan_.victim);
      case Status::failed:
        return plan_.port_breaks && rank == plan_.victim;
    }
    return false;
  }

  bool lacks_one() const { return plan_.crashes() || on(FaultKind::evict); }

  /// Nothing is lost any more, but for a rank that is dead or evicted.
  Status live_status(Rank rank) const {
    if (rank == plan_.victim && on(FaultKind::evict)) return Status::evicted;
    if (!lacks_one() || (call_.bounded && call_.count == 0)) return Status::complete;
    if (call_.bounded) return Status::partial;
    return plan_.crashes() ? Status::peer_dead : Status::evicted;
  }

  void judge_blame(Rank rank, const Report& report) {
    const bool blames = report.status == Status::peer_dead || report.status == Status::evicted;
    if (blames && report.blamed.empty()) {
      violate(rank, "says that a rank is gone, and not which");
    }
    for (const Rank blamed : report.late_ranks) {
      if (blamed == rank && report.status != Status::late_self) violate(rank, "calls itself late");
      // Where only the victim suffers, nobody else is to blame.
      const bool only_victim = calm_packets() && plan_.skew == Duration{} && rank != plan_.victim &&
                               plan_.pauses.empty();
      if (only_victim && blamed != plan_.victim) {
        violate(rank,
                fmt::format("{} blames rank {}, who is not at fault", name(report.status), blamed));
      }
    }
    // A jump of the own clock ends calls behind others that have had all they need.
    const bool own_clock = on(FaultKind::clock_jump) && rank == plan_.victim;
    const bool behind = own_clock && report.stage == CallStage::queued;
    if (report.status == Status::peer_late && report.late_ranks.empty() && !behind) {
      violate(rank, "is late, and says nobody is to blame");
    }
    for (const Rank blamed : report.blamed) {
      // In a mismatch the victim sees all others differ, and whoever has given up says so itself.
      const bool both_ways = report.status == Status::mismatch || call_.mismatched;
      if (blamed == plan_.victim || (both_ways && rank == plan_.victim)) continue;
      if (call_.mismatched && report.status == Status::aborted) continue;
      violate(rank,
              fmt::format("{} blames rank {}, who is not at fault", name(report.status), blamed));
    }
  }

  /// After healing every survivor is in every element, but for the shard of a dead rank.
  bool good_without_the_dead(const Report& report, const ContributorRun& run) const {
    if (!lacks_one() || run.count == 0) return true;  // complete
    if (run.contributors == (all_ranks(plan_.ranks) & ~(1ull << plan_.victim))) return true;
    const std::uint32_t number = plan_.mechanisms.rotation ? call_.number : 0;
    const std::uint32_t shard = shard_of(plan_.victim, number, plan_.ranks);
    if (report.coded) {
      const std::uint64_t row = report.coded->layout.row_elements();
      return run.contributors == 0 && run.count == row && run.first / row % plan_.ranks == shard;
    }
    const ShardLayout layout{call_.count, element_bytes(call_.type), plan_.ranks};
    const Range dead = layout.elements(shard);
    return run.contributors == 0 && run.first >= dead.first && run.first + run.count <= dead.end();
  }

  template <typename T>
  void judge_exact() {
    const ShardLayout layout{call_.count, sizeof(T), plan_.ranks};
    for (std::uint32_t shard = 0; shard < plan_.ranks; ++shard) {
      const Rank owner = owner_of(shard, plan_.mechanisms.rotation ? call_.number : 0, plan_.ranks);
      const Range range = layout.elements(shard);
      for (std::uint64_t i = range.first; i < range.end(); ++i) {
        const T expected =
            reduce_over<T>(all_ranks(plan_.ranks), plan_.ranks, owner, call_.function,
                           [&](Rank rank) { return element_at<T>(call_.inputs[rank], i); });
        for (Rank rank = 0; rank < plan_.ranks; ++rank) {
          if (!ended(rank) || !has_result(call_.pending[rank]->report)) continue;
          const T got = element_at<T>(call_.outputs[rank], i);
          if (std::memcmp(&got, &expected, sizeof got) == 0) continue;
          return violate(rank, fmt::format("element {} is {}, not {}", i, got, expected));
        }
      }
    }
  }

  /// Those by which the owner of element `i` weighed what it got; null: it weighed nothing, or
  /// nobody knows, since it is gone.
  const std::vector<double>* weights_at(std::uint64_t i) const {
    if (plan_.mechanisms.rescale != Rescale::inverse) return nullptr;
    const ShardLayout layout{call_.count, sizeof(float), plan_.ranks};
    std::uint32_t shard = 0;
    while (shard + 1 < plan_.ranks && layout.elements(shard).end() <= i) ++shard;
    const Rank owner = owner_of(shard, plan_.mechanisms.rotation ? call_.number : 0, plan_.ranks);
    if (call_.pending[owner] == nullptr) return nullptr;
    const std::vector<double>& weights = call_.pending[owner]->report.weights;
    return weights.empty() ? nullptr : &weights;
  }

  /// What element `i` of `run` has to be.
  float expect(const ContributorRun& run, std::uint64_t i) const {
    const std::vector<double>* weights = weights_at(i);
    return reduce_over<float>(
        run.contributors, plan_.ranks, 0, call_.function,
        [&](Rank r) {
          const auto value = static_cast<float>(coded_value(r));
          return weights == nullptr ? value : static_cast<float>((*weights)[r]) * value;
        },
        plan_.mechanisms.rescale);
  }

  /// Weighed values are rounded in the order in which they came.
  bool agrees(float got, float expected, std::uint64_t i) const {
    if (plan_.mechanisms.rescale != Rescale::inverse) return got == expected;
    const float slack = 1e-5f * std::abs(expected);
    if (weights_at(i) != nullptr || !lacks_one()) return std::abs(got - expected) <= slack;
    const auto most = static_cast<float>(SenderLoss::kMostWeight);
    return got >= expected - slack && got <= most * expected + slack;
  }

  /// Coded values tell their contributors: every element must be the reduction over exactly the
  /// ranks that the report names for it.
  void judge_bounded(Rank rank, const Report& report) {
    std::uint64_t next = 0;
    std::vector<std::uint64_t> missing(plan_.ranks, 0);
    const std::uint64_t positions = positions_of(report, call_.count);
    for (const ContributorRun& run : runs_of(report, positions, plan_.ranks)) {
      if (run.first != next) return violate(rank, "the report's runs have gaps");
      next += run.count;
      if (call_.live && !good_without_the_dead(report, run)) {
        violate(rank, fmt::format("elements {} to {} are of {:#x}", run.first, next - 1,
                                  run.contributors));
      }
      for (Rank r = 0; r < plan_.ranks; ++r) {
        if ((run.contributors >> r & 1) == 0) missing[r] += run.count;
      }
      if (report.coded) continue;
      float expected = expect(run, run.first);
      for (std::uint64_t i = run.first; i < next; ++i) {
        const auto got = element_at<float>(call_.outputs[rank], i);
        if (agrees(got, expected, i)) continue;
        expected = expect(run, i);  // of another shard, perhaps
        if (agrees(got, expected, i)) continue;
        // Where nobody looks for it, it spreads.
        if (call_.nonfinite && !std::isfinite(got) && (run.contributors >> plan_.victim & 1) != 0) {
          continue;
        }
        return violate(rank, fmt::format("element {} is {}, but the contributors {:#x} give {}", i,
                                         got, run.contributors, expected));
      }
    }
    if (next != positions) violate(rank, "the report's runs do not cover the result");
    if (!report.missing.empty() && report.missing != missing) {
      violate(rank, "the report's sums per rank differ from its runs");
    }
    if (report.coded) judge_coded(rank, report);
  }

  /// Every element must be what the coefficients of exactly those ranks decode to.
  void judge_coded(Rank rank, const Report& report) {
    const bool weighed = plan_.mechanisms.rescale == Rescale::inverse;
    CodedExpectation expected;
    if (!weighed) {
      expected = coded_expectation(
          report, plan_.ranks, rank, call_.function, MissingFill::zero,
          [](Rank r, std::uint64_t) { return static_cast<float>(coded_value(r)); });
    }
    for (std::uint64_t i = 0; i < call_.count; ++i) {
      const double got = element_at<float>(call_.outputs[rank], i);
      const bool good = weighed ? std::isfinite(got)
                                : std::abs(got - expected.values[i]) <= expected.tolerances[i];
      if (good) continue;
      return violate(rank, fmt::format("element {} decodes to {}, but should to {}", i, got,
                                       weighed ? 0.0 : expected.values[i]));
    }
  }

  const SimulationPlan& plan_;
  const SimulatedCall& call_;
  SimulationResult& result_;
};

}  // namespace

void judge_refusals(Rank rank, const EndpointCounters& got, const EndpointCounters& should,
                    SimulationResult& result) {
  for (const DropReason reason :
       {DropReason::runt, DropReason::magic, DropReason::version, DropReason::foreign_job,
        DropReason::type, DropReason::fields, DropReason::sender, DropReason::communicator,
        DropReason::integrity, DropReason::epoch}) {
    if (got[reason] == should[reason]) continue;
    result.violations.push_back(fmt::format("rank {}: {} packets to be refused by {}, {} were",
                                            rank, should[reason], drop_reason_name(reason),
                                            got[reason]));
  }
}

void judge(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result) {
  Judge(plan, call, result).run();
  judge_replicas(plan, call, result);
}

}  // namespace tarpon
