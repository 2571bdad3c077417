// The oracles of how calls end: when, and with which status.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "collectives/step_verdict.h"
#include "tools/reference/fnv.h"
#include "tools/simulation/judge/circumstances.h"

namespace tarpon {
namespace {

class Judge {
 public:
  Judge(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result)
      : plan_(plan), call_(call), at_(plan, call), result_(result) {}

  void run() {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (!call_.takes_part(rank)) continue;
      if (!at_.ended(rank)) {
        if (rank == plan_.victim && (plan_.crashes() || at_.left_out())) continue;
        return violate(rank, "did not end");
      }
      judge_end(rank);
    }
  }

 private:
  void violate(Rank rank, const std::string& what) {
    result_.violations.push_back(describe(call_, rank) + ": " + what);
  }

  void judge_end(Rank rank) {
    const Report& report = call_.pending[rank]->report;
    ++result_.calls;
    ++result_.statuses[static_cast<std::size_t>(report.status)];
    if (report.status == Status::partial) ++result_.partial;
    if (report.status == Status::aborted) {
      ++result_.abort_reasons[static_cast<std::size_t>(report.abort_reason)];
    }
    if (has_result(report.status)) fnv_mix(result_.trace_hash, call_.outputs[rank]);
    judge_time(rank, report);
    if (!may_end(rank, report)) {
      violate(rank, fmt::format("{}: {}", name(report.status), report.detail));
    }
    // A caller may follow such an AllReduce with any input. So no part of that input may be in a
    // result.
    const bool was_behind = call_.bounded && !call_.has_one_stage() && call_.count > 0 &&
                            (call_.behind >> rank & 1) != 0;
    if (was_behind && !was_only_given_up(rank) && has_result(report.status) &&
        report.status != Status::late_self) {
      violate(rank, fmt::format("{}, though another rank had ended the call", name(report.status)));
    }
    judge_blame(plan_, call_, rank, result_);
    if (const std::string wrong = judge_accounts(plan_, call_, rank); !wrong.empty()) {
      violate(rank, fmt::format("{}: {}", name(report.status), wrong));
    }
  }

  /// Whether the ranks that had ended the call before `rank` submitted it had all given it up. If
  /// their ABORTs come before `rank` begins the call, it leaves them out, and is not late.
  bool was_only_given_up(Rank rank) const {
    bool given_up = false;
    for (Rank other = 0; other < plan_.ranks; ++other) {
      if (other == rank || !at_.ended(other) || call_.ended[other] > call_.submitted[rank])
        continue;
      if (has_result(call_.pending[other]->report.status)) return false;
      given_up = true;
    }
    return given_up;
  }

  void judge_time(Rank rank, const Report& report) {
    const bool victim = rank == plan_.victim;
    const Duration took = call_.ended[rank] - call_.submitted[rank];
    // A rank that does not run cannot end a call. 500 ppm of 10 s are 5 ms. Time advances in steps,
    // and a call that begins to end at its deadline ends a step later. A result that came by the
    // deadline is decoded or filled after it, behind the pieces of older calls.
    Duration asleep = 1us + at_.paused(rank) + call_.worked[rank];
    if (victim) {
      asleep += plan_.pause.length() + 2 * plan_.slow_period + (plan_.drift_ppm != 0 ? 6ms : 0ms);
    }
    if (took > call_.deadline + asleep) {
      const auto late = std::chrono::duration<double, std::milli>(took - call_.deadline);
      violate(rank,
              fmt::format("{}: ended {} ms after its deadline", name(report.status), late.count()));
    }
    const bool gone = report.status == Status::peer_dead || report.status == Status::evicted ||
                      report.status == Status::peer_left;
    if (call_.live && gone && took > 1ms) {
      violate(rank, "did not end at once, though a rank is gone");
    }
    const Time told = call_.told_left[rank];
    if (told != kNever && !call_.bounded && !plan_.queues() &&
        (at_.receives_of_victim(rank) || at_.sends_to_victim(rank)) &&
        call_.ended[rank] - std::max(told, call_.submitted[rank]) > 1ms + asleep) {
      violate(rank, "did not end at once, though a rank has left");
    }
    judge_bound(rank, report, asleep);
    judge_wait(rank, report);
    if (report.mode != Mode::bounded || plan_.calls_per_tag != 1 || call_.mismatched) return;
    // A late rank fetches the result until its deadline.
    if ((victim && at_.disturbs_victim()) || report.status == Status::late_self || report.in_doubt)
      return;
    if (!plan_.pauses.empty()) return;
    // The limit is the time until half of the ranks are heard, and the bound. If the first
    // announcements are lost, hearing may take a few repetitions. A call over hosts announces
    // itself to most ranks by its data, and by READYs if an owner keeps that back.
    const Duration quiet =
        report.algorithm == Algorithm::hosts ? EndpointOptions{}.quiet_delay : Duration{};
    const Duration hearing =
        plan_.skew + plan_.lateness + quiet + (at_.calm_packets() ? 2ms : 500ms);
    const Duration bound = plan_.limited ? bound_of(plan_, call_) : report.bound + report.held;
    const Duration most = hearing + bound + at_.work();
    if (!at_.delays_all() && report.elapsed > most) {
      violate(rank, fmt::format("took {} us", report.elapsed / 1us));
    }
  }

  /// Checks that a bounded call ends by its bound. Ranks that are late or in doubt may end later,
  /// and say so.
  void judge_bound(Rank rank, const Report& report, Duration asleep) {
    const bool by_bound = report.status == Status::complete || report.status == Status::partial;
    if (report.bound == Duration::zero() || !by_bound) return;
    if (report.clock_start + report.bound <= Duration::zero()) return;  // it came after the end
    // A jammed port keeps the buffers.
    const bool held_up =
        at_.on(FaultKind::clock_jump) || at_.on(FaultKind::slow_rank) || at_.on(FaultKind::jam);
    if (rank == plan_.victim && held_up) return;
    // A stream of packets without end delays timers by a millisecond.
    const Duration late = report.elapsed - report.clock_start - report.bound - report.held;
    // A rank in doubt waits for answers until three gather times after the bound, and one more for
    // each peer that ends the call meanwhile. A gather time is at most half of the bound.
    const auto times = report.in_doubt ? 3 + plan_.ranks - 1 : 0;
    const Duration doubt = times * report.bound / 2;
    if (late > 1ms + asleep + doubt) {
      violate(rank, fmt::format("{}: ended {} us after its bound of {} us", name(report.status),
                                late / 1us, report.bound / 1us));
    }
    const LossCauses& causes = report.causes;
    const double sum = causes.of_live_ranks() + causes.gone;
    if (!(std::abs(sum - report.lost_fraction) <= 1e-9)) {  // NaN is no share either
      violate(rank,
              fmt::format("the causes of loss add up to {}, not to {}", sum, report.lost_fraction));
    }
  }

  /// Checks that a call under a learnt bound has waited for live ranks, and for no others.
  void judge_wait(Rank rank, const Report& report) {
    const bool learnt = !call_.live && call_.bounded && plan_.usual > Duration::zero();
    if (!learnt || plan_.limited || !has_result(report.status)) return;
    const bool by_deadline = report.elapsed + 1ms >= call_.deadline;
    if (by_deadline && call_.has_one_stage() && at_.only_late()) {
      violate(rank, fmt::format("{}: waited until its deadline", name(report.status)));
    }
    if (!by_deadline && call_.count > 0 && at_.only_late()) {
      const double most = LossBudget::usual(plan_.mechanisms.loss_target).skip_above;
      if (report.status == Status::late_self || report.lost_fraction > most) {
        violate(rank, fmt::format("{} lacks {} of live ranks", name(report.status),
                                  report.lost_fraction));
      }
    }
    if (report.held > Duration::zero() && at_.only_lacks_gone(rank)) {
      violate(rank, fmt::format("was held for {} us though all live ranks were in time",
                                report.held / 1us));
    }
  }

  bool may_end(Rank rank, const Report& report) const {
    if (call_.live && call_.bounded && plan_.overflows_unrepaired()) {
      return report.status == live_status(rank) || report.status == Status::partial;
    }
    if (call_.live) return report.status == live_status(rank);
    if (call_.mismatched && call_.count > 1 && at_.news_is_in_time() &&
        at_.receives_of_victim(rank)) {
      return report.status == Status::mismatch;
    }
    switch (report.status) {
      case Status::complete:
        if (call_.refused && rank == plan_.victim) return false;
        if (!at_.receives_of_victim(rank)) return true;
        if ((at_.left_out() || call_.late) && !(call_.bounded && call_.count == 0)) {
          // All that a late rank needs may have come before the others gave the call up.
          return (call_.bounded || rank == plan_.victim) && !at_.left_out();
        }
        // A bounded call without elements waits for no rank.
        return !(call_.mismatched || call_.refused) ||
               (call_.bounded && call_.pending[rank]->arguments.count == 0);
      case Status::partial:
      case Status::late_self:
        if (call_.refused && (rank == plan_.victim || at_.news_is_in_time())) return false;
        return call_.bounded;
      case Status::peer_late:
        if (call_.bounded && at_.paused(rank) > Duration{}) return true;
        if (call_.bounded && rank == plan_.victim && at_.disturbs_victim()) return true;
        if (call_.bounded && !at_.queues_behind_exact() && !call_.mismatched) return false;
        return at_.may_expire();
      case Status::mismatch:
        return call_.mismatched;
      case Status::aborted:
        return may_be_aborted(rank, report.abort_reason);
      case Status::peer_dead:
        return plan_.crashes() && !call_.bounded && rank != plan_.victim;
      case Status::evicted:
        return at_.on(FaultKind::evict) && (!call_.bounded || rank == plan_.victim);
      case Status::peer_left:
        // An evicted rank that is leaving goes without serving the calls that it has made. The news
        // of its end may come before the news of its eviction. A rank that gave the call up at its
        // deadline before it left has not served it either.
        return (at_.left_out() || at_.leaver_gave_up() || call_.served_in_vain ||
                (plan_.leave_at != kNever && at_.on(FaultKind::evict))) &&
               !call_.bounded;
      case Status::failed:
        return plan_.port_breaks && rank == plan_.victim;
    }
    return false;
  }

  bool may_be_aborted(Rank rank, AbortReason reason) const {
    switch (reason) {
      case AbortReason::late:
        // Exact calls that reach their deadline at one rank are over for all. A call that is
        // bounded elsewhere may be exact at the rank that asks for something else.
        return (!call_.bounded || call_.mismatched) && at_.may_expire();
      case AbortReason::expired:
        // A call that expires in the queue is given up for its peers as well.
        return plan_.queues() && at_.may_expire();
      case AbortReason::argument:
      case AbortReason::deadline: {
        const bool by_deadline = plan_.wrong_argument == WrongArgument::deadline;
        const bool said_so = (reason == AbortReason::deadline) == by_deadline;
        return call_.refused && (said_so || call_.count == 0);
      }
      case AbortReason::mismatch:
        return call_.mismatched;
      case AbortReason::given_up:
        return at_.on(FaultKind::abort) && !(call_.refused && rank == plan_.victim);
      case AbortReason::memory:
        return at_.on(FaultKind::no_memory);
      case AbortReason::exception:
      case AbortReason::tag_forgotten:
        return false;
    }
    return false;
  }

  bool lacks_one() const {
    const bool gives = !call_.gathers_parts() || call_.parts[0].parts[plan_.victim].count > 0;
    return plan_.loses_victim() && gives;
  }

  /// The status of a call after healing: nothing is lost any more, except a rank that is gone.
  Status live_status(Rank rank) const {
    if (rank == plan_.victim && at_.on(FaultKind::evict)) return Status::evicted;
    if (!lacks_one() || (call_.bounded && call_.output_of(rank).count == 0))
      return Status::complete;
    if (call_.bounded) return Status::partial;
    if (plan_.crashes()) return Status::peer_dead;
    return at_.on(FaultKind::evict) ? Status::evicted : Status::peer_left;
  }

  const SimulationPlan& plan_;
  const SimulatedCall& call_;
  const Circumstances at_;
  SimulationResult& result_;
};

}  // namespace

std::string describe(const SimulatedCall& call, Rank rank) {
  const bool tar = call.algorithm == Algorithm::tar;
  return fmt::format(
      "tag {} {} {} ({}{}{}{} {} x {}) rank {}", call.tag, call.live ? "live call" : "call",
      call.number, call.has_one_stage() ? "bounded " : "",
      !call.parts.empty() ? name(call.parts[rank].collective)
      : tar               ? ""
                          : name(call.algorithm),
      tar && call.parts.empty() ? "" : " ", name(call.function), name(call.type), call.count, rank);
}

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

void judge_memory(Rank rank, const EndpointMemory& memory, SimulationResult& result) {
  const bool empty = memory.active_tags == 0 && memory.retained_entries == 0 &&
                     memory.retained_bytes == 0 && memory.early_operations == 0 &&
                     memory.parked == 0;
  if (empty) return;
  result.violations.push_back(fmt::format(
      "rank {} holds {} tags, {} results of {} bytes, {} early operations and {} parked packets "
      "when all calls are over",
      rank, memory.active_tags, memory.retained_entries, memory.retained_bytes,
      memory.early_operations, memory.parked));
}

void judge(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result) {
  Judge(plan, call, result).run();
  judge_results(plan, call, result);
  judge_replicas(plan, call, result);
}

}  // namespace tarpon
