// The oracles of how calls end: when, with which status, and which ranks they blame.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/reference/fnv.h"
#include "tools/simulation/simulated_call.h"

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
        if (rank == plan_.victim && (plan_.crashes() || left_out())) continue;
        return violate(rank, "did not end");
      }
      judge_end(rank);
    }
  }

 private:
  void violate(Rank rank, const std::string& what) {
    result_.violations.push_back(describe(call_, rank) + ": " + what);
  }

  /// Whether the victim left before it made this call.
  bool left_out() const { return plan_.leave_at != kNever && !call_.pending[plan_.victim]; }

  /// Whether the victim, which left, had given this call up at its deadline.
  bool leaver_gave_up() const {
    return plan_.leave_at != kNever && ended(plan_.victim) &&
           call_.pending[plan_.victim]->report.status == Status::peer_late;
  }

  bool ended(Rank rank) const { return call_.pending[rank] && call_.pending[rank]->done; }

  bool on(FaultKind kind) const { return has(plan_.on, kind); }

  void judge_end(Rank rank) {
    const Report& report = call_.pending[rank]->report;
    ++result_.calls;
    ++result_.statuses[static_cast<std::size_t>(report.status)];
    if (report.status == Status::partial) ++result_.partial;
    if (report.status == Status::aborted) {
      ++result_.abort_reasons[static_cast<std::size_t>(report.abort_reason)];
    }
    if (has_result(report)) fnv_mix(result_.trace_hash, call_.outputs[rank]);
    judge_time(rank, report);
    if (!may_end(rank, report)) {
      violate(rank, fmt::format("{}: {}", name(report.status), report.detail));
    }
    judge_blame(rank, report);
    if (const std::string wrong = judge_accounts(plan_, call_, rank); !wrong.empty()) {
      violate(rank, fmt::format("{}: {}", name(report.status), wrong));
    }
  }

  void judge_time(Rank rank, const Report& report) {
    const bool victim = rank == plan_.victim;
    const Duration took = call_.ended[rank] - call_.submitted[rank];
    // A rank that does not run cannot end a call. 500 ppm of 10 s are 5 ms. Time advances in steps,
    // and a call that begins to end at its deadline ends a step later. A result that came by the
    // deadline is decoded or filled after it, behind the pieces of older calls.
    Duration asleep = 1us + paused(rank) + call_.worked[rank];
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
        call_.ended[rank] - std::max(told, call_.submitted[rank]) > 1ms + asleep) {
      violate(rank, "did not end at once, though a rank has left");
    }
    judge_bound(rank, report, asleep);
    if (report.mode != Mode::bounded || plan_.calls_per_tag != 1 || call_.mismatched) return;
    // A late rank fetches the result until its deadline.
    if ((victim && disturbs_victim()) || report.status == Status::late_self || report.in_doubt)
      return;
    if (!plan_.pauses.empty()) return;
    // The limit is the time until half of the ranks are heard, and the bound. If the first
    // announcements are lost, hearing may take a few repetitions.
    const Duration hearing = plan_.skew + (calm_packets() ? 2ms : 500ms);
    const Duration most = hearing + bound_of(plan_, call_) + work();
    if (!delays_all() && report.elapsed > most) {
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
        on(FaultKind::clock_jump) || on(FaultKind::slow_rank) || on(FaultKind::jam);
    if (rank == plan_.victim && held_up) return;
    // A stream of packets without end delays timers by a millisecond.
    const Duration late = report.elapsed - report.clock_start - report.bound;
    // A rank in doubt waits for answers until three gather times after the bound. A gather time is
    // at most half of the bound.
    const Duration doubt = report.in_doubt ? 3 * report.bound / 2 : Duration::zero();
    if (late > 1ms + asleep + doubt) {
      violate(rank, fmt::format("{}: ended {} us after its bound of {} us", name(report.status),
                                late / 1us, report.bound / 1us));
    }
    const LossCauses& causes = report.causes;
    const double sum = causes.of_network() + causes.late_ranks + causes.void_shards;
    if (std::abs(sum - report.lost_fraction) > 1e-9) {
      violate(rank,
              fmt::format("the causes of loss add up to {}, not to {}", sum, report.lost_fraction));
    }
  }

  /// The work of all ranks: a rank that waits to hear half of them waits until those have encoded.
  Duration work() const {
    Duration sum{};
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (ended(rank)) sum += call_.worked[rank];
    }
    return sum;
  }

  /// How long a trace pauses `rank`.
  Duration paused(Rank rank) const {
    Duration sum{};
    for (const auto& [who, window] : plan_.pauses) sum += who == rank ? window.length() : 0ms;
    return sum;
  }

  /// Whether a fault is on that disturbs only the victim's packets and times.
  bool disturbs_victim() const {
    return on(FaultKind::partition) || on(FaultKind::one_way) || on(FaultKind::jam) ||
           on(FaultKind::pause) || on(FaultKind::slow_rank) || on(FaultKind::clock_jump) ||
           call_.late;
  }

  /// Whether nothing happens to the packets of ranks other than the victim.
  bool calm_packets() const {
    return !plan_.faults.any() && !plan_.links && !on(FaultKind::mask) &&
           !on(FaultKind::starved_buffers) && plan_.receive_bytes >= kRoomyBuffer;
  }

  /// Whether links may delay the announcement of a rank without limit.
  bool delays_all() const { return plan_.links.has_value(); }

  /// Whether exact calls may wait so long that their deadlines come first.
  bool may_expire() const { return call_.late || plan_.deadlines_may_pass(); }

  /// Whether the calls from which bounds are learnt may leave later calls too little time to hear
  /// any rank.
  bool queues_behind_exact() const {
    return plan_.queues() && plan_.bound_rule != BoundRule::automatic;
  }

  bool may_end(Rank rank, const Report& report) const {
    if (call_.live && call_.bounded && plan_.overflows_unrepaired()) {
      return report.status == live_status(rank) || report.status == Status::partial;
    }
    if (call_.live) return report.status == live_status(rank);
    if (call_.mismatched && call_.count > 1 && news_is_in_time()) {
      return report.status == Status::mismatch;
    }
    switch (report.status) {
      case Status::complete:
        if (call_.refused && rank == plan_.victim) return false;
        if ((left_out() || call_.late) && !(call_.bounded && call_.count == 0)) {
          // All that a late rank needs may have come before the others gave the call up.
          return (call_.bounded || rank == plan_.victim) && !left_out();
        }
        // A bounded call without elements waits for no rank.
        return !(call_.mismatched || call_.refused) ||
               (call_.bounded && call_.pending[rank]->arguments.count == 0);
      case Status::partial:
      case Status::late_self:
        if (call_.refused && (rank == plan_.victim || news_is_in_time())) return false;
        return call_.bounded;
      case Status::peer_late:
        if (call_.bounded && paused(rank) > Duration{}) return true;
        if (call_.bounded && rank == plan_.victim && disturbs_victim()) return true;
        if (call_.bounded && !queues_behind_exact() && !call_.mismatched) return false;
        return may_expire();
      case Status::mismatch:
        return call_.mismatched;
      case Status::aborted:
        return may_be_aborted(rank, report.abort_reason);
      case Status::peer_dead:
        return plan_.crashes() && !call_.bounded && rank != plan_.victim;
      case Status::evicted:
        return on(FaultKind::evict) && (!call_.bounded || rank == plan_.victim);
      case Status::peer_left:
        // An evicted rank that is leaving goes without serving the calls that it has made. The news
        // of its end may come before the news of its eviction. A rank that gave the call up at its
        // deadline before it left has not served it either.
        return (left_out() || leaver_gave_up() || call_.served_in_vain ||
                (plan_.leave_at != kNever && on(FaultKind::evict))) &&
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
        return (!call_.bounded || call_.mismatched) && may_expire();
      case AbortReason::expired:
        // A call that expires in the queue is given up for its peers as well.
        return plan_.queues() && may_expire();
      case AbortReason::argument:
      case AbortReason::deadline: {
        const bool by_deadline = plan_.wrong_argument == WrongArgument::deadline;
        const bool said_so = (reason == AbortReason::deadline) == by_deadline;
        return call_.refused && (said_so || call_.count == 0);
      }
      case AbortReason::mismatch:
        return call_.mismatched;
      case AbortReason::given_up:
        return on(FaultKind::abort) && !(call_.refused && rank == plan_.victim);
      case AbortReason::memory:
        return on(FaultKind::no_memory);
      case AbortReason::exception:
      case AbortReason::tag_forgotten:
        return false;
    }
    return false;
  }

  /// Whether every rank hears that the victim refuses a call, or asks for another one, before the
  /// call could end; also before packets of the victim's next call, which tell bounded calls that
  /// nothing more of this call will come.
  bool news_is_in_time() const {
    FaultSet harmless;
    for (const FaultKind kind : {FaultKind::refuse, FaultKind::mismatch, FaultKind::two_jobs,
                                 FaultKind::hostile, FaultKind::drift, FaultKind::nonfinite}) {
      harmless.set(static_cast<std::size_t>(kind));
    }
    return (plan_.on & ~harmless).none() && calm_packets() && plan_.pauses.empty() &&
           plan_.skew == Duration{};
  }

  bool lacks_one() const { return plan_.loses_victim(); }

  /// The status of a call after healing: nothing is lost any more, except a rank that is gone.
  Status live_status(Rank rank) const {
    if (rank == plan_.victim && on(FaultKind::evict)) return Status::evicted;
    if (!lacks_one() || (call_.bounded && call_.count == 0)) return Status::complete;
    if (call_.bounded) return Status::partial;
    if (plan_.crashes()) return Status::peer_dead;
    return on(FaultKind::evict) ? Status::evicted : Status::peer_left;
  }

  /// Whether peers may call `rank` late for a fault of the victim.
  bool is_made_late(Rank rank) const {
    // The victim, whose clock jumped, closed the call without the rank's data and told the others.
    if (on(FaultKind::clock_jump) && call_.pending[plan_.victim]) {
      const std::vector<Rank>& lacked = call_.pending[plan_.victim]->report.void_shards;
      if (std::find(lacked.begin(), lacked.end(), rank) != lacked.end()) return true;
    }
    const auto ended = call_.pending[rank] ? call_.pending[rank]->report.status : Status::failed;
    // An owner that has closed the call, and does not keep its shard, answers a question by CLOSED.
    // That answer may overtake the shard on its way. A request for a stage that no call has, as a
    // stranger may send it, gets the same answer.
    const bool answers_closed = !plan_.mechanisms.retention || on(FaultKind::hostile);
    if (call_.bounded && answers_closed && ended == Status::complete) return true;
    if (ended != Status::late_self && plan_.mechanisms.retention) return false;
    // The rank waited for earlier calls, which the victim held up.
    return call_.number >= EndpointOptions{}.window;
  }

  void judge_blame(Rank rank, const Report& report) {
    const bool blames = report.status == Status::peer_dead || report.status == Status::evicted ||
                        report.status == Status::peer_left;
    if (blames && report.blamed.empty()) {
      violate(rank, "says that a rank is gone, and not which");
    }
    // A victim whose clock jumped names the ranks that it waited for.
    const bool told_by_clock =
        on(FaultKind::clock_jump) && !call_.bounded &&
        (report.status == Status::peer_late || report.abort_reason == AbortReason::late);
    if (told_by_clock) return;
    // A victim that is cut off gives calls up for want of ranks. One that lacks others as well, by
    // loss, cannot tell whether its own data was lost.
    const bool told_by_victim = (on(FaultKind::one_way) || on(FaultKind::partition)) &&
                                report.status == Status::aborted &&
                                report.abort_reason == AbortReason::late;
    if (told_by_victim && report.blamed == std::vector<Rank>{rank}) return;
    judge_blame_of_late(rank, report);
    for (const Rank blamed : report.late_ranks) {
      if (blamed == rank && report.status != Status::late_self) violate(rank, "calls itself late");
      // If only the victim suffers, no other rank is to blame.
      const bool only_victim = calm_packets() && plan_.skew == Duration{} && rank != plan_.victim &&
                               plan_.pauses.empty() && !is_made_late(blamed);
      // A forged packet says that the victim has begun. Then ranks name the next in turn: the ranks
      // whose results lack the victim's part.
      const bool lied_to = (on(FaultKind::lies) || on(FaultKind::hostile)) && ended(blamed) &&
                           call_.pending[blamed]->report.status == Status::peer_late;
      // A rank whose earlier calls kept it longer than a learnt bound is late.
      const bool was_kept = call_.bounded && queues_behind_exact();
      if (only_victim && blamed != plan_.victim && !lied_to && !was_kept) {
        violate(rank,
                fmt::format("{} blames rank {}, who is not at fault", name(report.status), blamed));
      }
    }
    // A call may expire behind calls that slow packets hold up, or by a jump of the rank's own
    // clock.
    const bool own_clock = on(FaultKind::clock_jump) && rank == plan_.victim;
    const bool behind = report.stage == CallStage::queued && (own_clock || !calm_packets());
    if (report.status == Status::peer_late && report.late_ranks.empty() && !behind) {
      violate(rank, "is late, and says nobody is to blame");
    }
    for (const Rank blamed : report.blamed) {
      // In a mismatch the victim sees all others differ, and a rank that has given up says so
      // itself.
      const bool both_ways = report.status == Status::mismatch || call_.mismatched;
      if (blamed == plan_.victim || (both_ways && rank == plan_.victim)) continue;
      if (call_.mismatched && report.status == Status::aborted) continue;
      if (report.abort_reason == AbortReason::expired && expired_behind_packets(blamed)) continue;
      // At the deadline of a peer some of this rank's packets were still lost.
      const bool by_loss = report.abort_reason == AbortReason::late && !calm_packets();
      if (by_loss && blamed == rank) continue;
      violate(rank,
              fmt::format("{} blames rank {}, who is not at fault", name(report.status), blamed));
    }
  }

  /// Whether the call expired at `rank` behind earlier calls, which slow packets held up.
  bool expired_behind_packets(Rank rank) const {
    if (calm_packets() || !ended(rank)) return false;
    const Report& report = call_.pending[rank]->report;
    return report.status == Status::peer_late && report.stage == CallStage::queued;
  }

  /// Checks, if the victim is late and nothing else happens, that all ranks name it, and that it
  /// learns so at once.
  void judge_blame_of_late(Rank rank, const Report& report) {
    FaultSet harmless;
    for (const FaultKind kind : {FaultKind::late_call, FaultKind::two_jobs, FaultKind::hostile,
                                 FaultKind::drift, FaultKind::nonfinite}) {
      harmless.set(static_cast<std::size_t>(kind));
    }
    const bool alone = (plan_.on & ~harmless).none() && calm_packets() && plan_.pauses.empty();
    if (!call_.late || call_.bounded || !alone) return;
    const bool victim = rank == plan_.victim;
    const std::vector<Rank>& named = victim ? report.blamed : report.late_ranks;
    const bool said = report.status == (victim ? Status::aborted : Status::peer_late);
    if (!said || named != std::vector<Rank>{plan_.victim}) {
      violate(rank, fmt::format("{} does not name rank {} alone, which was late",
                                name(report.status), plan_.victim));
    }
    if (victim && call_.ended[rank] - call_.submitted[rank] > 50ms) {
      violate(rank, "did not learn at once that it was late");
    }
  }

  const SimulationPlan& plan_;
  const SimulatedCall& call_;
  SimulationResult& result_;
};

}  // namespace

std::string describe(const SimulatedCall& call, Rank rank) {
  const bool tar = call.algorithm == Algorithm::tar;
  return fmt::format("tag {} {} {} ({}{}{} {} x {}) rank {}", call.tag,
                     call.live ? "live call" : "call", call.number, tar ? "" : name(call.algorithm),
                     tar ? "" : " ", name(call.function), name(call.type), call.count, rank);
}

bool has_result(const Report& report) {
  return report.status == Status::complete || report.status == Status::partial ||
         report.status == Status::late_self;
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
