// The oracle of which ranks the report of a call blames.
#include <fmt/format.h>

#include <algorithm>

#include "tools/simulation/judge/circumstances.h"

namespace tarpon {
namespace {

class BlameJudge {
 public:
  BlameJudge(const SimulationPlan& plan, const SimulatedCall& call, Rank rank,
             SimulationResult& result)
      : plan_(plan),
        call_(call),
        rank_(rank),
        report_(call.pending[rank]->report),
        at_(plan, call),
        result_(result) {}

  void run() {
    const bool blames = report_.status == Status::peer_dead || report_.status == Status::evicted ||
                        report_.status == Status::peer_left;
    if (blames && report_.blamed.empty()) violate("says that a rank is gone, and not which");
    // A victim whose clock jumped names the ranks that it waited for.
    const bool told_by_clock =
        at_.on(FaultKind::clock_jump) && !call_.bounded &&
        (report_.status == Status::peer_late || report_.abort_reason == AbortReason::late);
    if (told_by_clock) return;
    // A victim that is cut off gives calls up for want of ranks. One that lacks others as well, by
    // loss, cannot tell whether its own data was lost.
    const bool told_by_victim = (at_.on(FaultKind::one_way) || at_.on(FaultKind::partition)) &&
                                report_.status == Status::aborted &&
                                report_.abort_reason == AbortReason::late;
    if (told_by_victim && report_.blamed == std::vector<Rank>{rank_}) return;
    judge_lone_late_rank();
    for (const Rank late : report_.late_ranks) judge_late(late);
    judge_want_of_blame();
    for (const Rank blamed : report_.blamed) judge_blamed(blamed);
  }

 private:
  void violate(const std::string& what) {
    result_.violations.push_back(describe(call_, rank_) + ": " + what);
  }

  void accuse_of_blaming(Rank blamed) {
    violate(fmt::format("{} blames rank {}, who is not at fault", name(report_.status), blamed));
  }

  /// Checks, if the victim is late and nothing else happens, that all ranks name it, and that it
  /// learns so at once.
  void judge_lone_late_rank() {
    const bool alone =
        at_.nothing_but({FaultKind::late_call, FaultKind::two_jobs, FaultKind::hostile,
                         FaultKind::drift, FaultKind::nonfinite});
    if (!call_.late || call_.bounded || !alone) return;
    const bool victim = rank_ == plan_.victim;
    const bool concerned = victim ? victim_contributes() : at_.receives_of_victim(rank_);
    if (report_.status == Status::complete && !concerned) return;
    const std::vector<Rank>& named = victim ? report_.blamed : report_.late_ranks;
    const bool said = report_.status == (victim ? Status::aborted : Status::peer_late);
    if (!said || named != std::vector<Rank>{plan_.victim}) {
      violate(fmt::format("{} does not name rank {} alone, which was late", name(report_.status),
                          plan_.victim));
    }
    if (victim && call_.ended[rank_] - call_.submitted[rank_] > 50ms) {
      violate("did not learn at once that it was late");
    }
  }

  void judge_late(Rank late) {
    if (late == rank_ && report_.status != Status::late_self) violate("calls itself late");
    if (late != rank_ && report_.status == Status::late_self && !may_be_gone(late)) {
      violate(fmt::format("is late itself, and names rank {}", late));
    }
    // If only the victim suffers, no other rank is to blame.
    const bool only_victim = at_.calm_packets() && plan_.skew == Duration{} &&
                             rank_ != plan_.victim && plan_.pauses.empty() && !is_made_late(late);
    // A forged packet says that the victim has begun. Then ranks name the next in turn: the ranks
    // whose results lack the victim's part.
    const bool lied_to = (at_.on(FaultKind::lies) || at_.on(FaultKind::hostile)) &&
                         at_.ended(late) && call_.pending[late]->report.status == Status::peer_late;
    // A rank whose earlier calls kept it longer than a learnt bound is late.
    const bool was_kept = call_.bounded && at_.queues_behind_exact();
    const bool came_late = call_.bounded && waits_for_late(late);
    if (only_victim && late != plan_.victim && !lied_to && !was_kept && !came_late) {
      accuse_of_blaming(late);
    }
  }

  /// Whether `rank` came late, or waited in the memory of its host for a rank that did, or for the
  /// victim.
  bool waits_for_late(Rank rank) const {
    if ((plan_.late_ranks >> rank & 1) != 0) return true;
    if (call_.algorithm != Algorithm::hosts) return false;
    if (is_near_victim(rank)) return true;
    const hosts::HostLayout layout = plan_.layout();
    const std::vector<Rank>& near = layout.hosts[layout.host_of(rank)];
    return std::any_of(near.begin(), near.end(),
                       [this](Rank one) { return (plan_.late_ranks >> one & 1) != 0; });
  }

  void judge_want_of_blame() {
    // A call may expire behind calls that slow packets hold up, or by a jump of the rank's own
    // clock.
    const bool own_clock = at_.on(FaultKind::clock_jump) && rank_ == plan_.victim;
    const bool behind = report_.stage == CallStage::queued && (own_clock || !at_.calm_packets());
    if (report_.status == Status::peer_late && report_.late_ranks.empty() && !behind) {
      violate("is late, and says nobody is to blame");
    }
  }

  void judge_blamed(Rank blamed) {
    // In a mismatch the victim sees all others differ, and a rank that has given up says so
    // itself.
    const bool both_ways = report_.status == Status::mismatch || call_.mismatched;
    if (blamed == plan_.victim || (both_ways && rank_ == plan_.victim)) return;
    if (call_.mismatched && report_.status == Status::aborted) return;
    if (report_.abort_reason == AbortReason::expired && expired_behind_packets(blamed)) return;
    // At the deadline of a peer some of this rank's packets were still lost.
    const bool by_loss = report_.abort_reason == AbortReason::late && !at_.calm_packets();
    if (by_loss && blamed == rank_) return;
    accuse_of_blaming(blamed);
  }

  /// Whether the call expired at `rank` behind earlier calls, which slow packets held up.
  bool expired_behind_packets(Rank rank) const {
    if (at_.calm_packets() || !at_.ended(rank)) return false;
    const Report& report = call_.pending[rank]->report;
    return report.status == Status::peer_late && report.stage == CallStage::queued;
  }

  /// Whether this rank may take `rank` for gone: silent, dead, evicted or left. A victim that is
  /// cut off takes every rank for silent.
  bool may_be_gone(Rank rank) const {
    const bool has_victim = rank == plan_.victim || rank_ == plan_.victim;
    return has_victim || !plan_.pauses.empty() || plan_.may_silence_live_ranks();
  }

  /// Whether peers may call `rank` late for a fault of the victim.
  bool is_made_late(Rank rank) const {
    // The victim, whose clock jumped, closed the call without the rank's data and told the others.
    if (at_.on(FaultKind::clock_jump) && call_.pending[plan_.victim]) {
      const Report& of_victim = call_.pending[plan_.victim]->report;
      // A late rank asks the victim too, which may have ended before any other rank began.
      if (call_.bounded && plan_.usual > Duration::zero()) return true;
      const std::vector<Rank>& lacked = of_victim.void_shards;
      if (std::find(lacked.begin(), lacked.end(), rank) != lacked.end()) return true;
    }
    // The victim heard nothing for so long that it took the rank for silent.
    if (call_.bounded && at_.deafens_victim() && victim_names(rank)) return true;
    // A victim that is cut off lacks the rank's answer. The memory of its host carries its word.
    const bool cut_off = at_.on(FaultKind::one_way) || at_.on(FaultKind::partition);
    if (cut_off && is_near_victim(rank_) && victim_names(rank)) return true;
    const auto ended = call_.pending[rank] ? call_.pending[rank]->report.status : Status::failed;
    // An owner that has closed the call, and does not keep its shard, answers a question by CLOSED.
    // That answer may overtake the shard on its way. A request for a stage that no call has, as a
    // stranger may send it, gets the same answer.
    const bool answers_closed = !plan_.mechanisms.retention || at_.on(FaultKind::hostile);
    const bool closed = ended == Status::complete || ended == Status::partial;
    if (call_.bounded && answers_closed && closed) return true;
    if (ended != Status::late_self && plan_.mechanisms.retention) return false;
    // The rank waited for earlier calls, which the victim held up.
    return call_.number >= EndpointOptions{}.window;
  }

  /// Whether a rank needs data of the victim. If no rank does, the others end without the victim.
  /// They keep their data for it, so a late victim completes the call.
  bool victim_contributes() const {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (rank != plan_.victim && at_.receives_of_victim(rank)) return true;
    }
    return false;
  }

  /// Whether the victim calls `rank` late.
  bool victim_names(Rank rank) const {
    if (!call_.pending[plan_.victim]) return false;
    const std::vector<Rank>& late = call_.pending[plan_.victim]->report.late_ranks;
    return std::find(late.begin(), late.end(), rank) != late.end();
  }

  bool is_near_victim(Rank rank) const {
    if (call_.algorithm != Algorithm::hosts) return false;
    const hosts::HostLayout layout = plan_.layout();
    return layout.host_of(rank) == layout.host_of(plan_.victim);
  }

  const SimulationPlan& plan_;
  const SimulatedCall& call_;
  const Rank rank_;
  const Report& report_;
  const Circumstances at_;
  SimulationResult& result_;
};

}  // namespace

void judge_blame(const SimulationPlan& plan, const SimulatedCall& call, Rank rank,
                 SimulationResult& result) {
  BlameJudge(plan, call, rank, result).run();
}

}  // namespace tarpon
