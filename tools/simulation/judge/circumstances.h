// Effects that the faults of a plan may have on one call. The judges ask before they accuse a rank.
#pragma once

#include <initializer_list>

#include "tools/simulation/simulated_call.h"

namespace tarpon {

/// Refers to the plan and the call, which outlive it.
class Circumstances {
 public:
  Circumstances(const SimulationPlan& plan, const SimulatedCall& call) : plan_(plan), call_(call) {}

  /// Whether the fault may have an effect: forged packets have none in a job with a secret.
  bool on(FaultKind kind) const {
    const bool forges = kind == FaultKind::hostile || kind == FaultKind::lies;
    return has(plan_.on, kind) && !(forges && plan_.has_secret());
  }
  /// Whether `rank` needs data of the victim, or has some for it. In an AllReduce each rank does.
  bool receives_of_victim(Rank rank) const;
  bool sends_to_victim(Rank rank) const;
  bool ended(Rank rank) const { return call_.pending[rank] && call_.pending[rank]->done; }

  /// Whether the victim left before it made this call.
  bool left_out() const { return plan_.leave_at != kNever && !call_.pending[plan_.victim]; }
  /// Whether the victim, which left, had given this call up at its deadline.
  bool leaver_gave_up() const;

  /// Whether no fault is on but `harmless` ones, no rank pauses, and packets are calm.
  bool nothing_but(std::initializer_list<FaultKind> harmless) const;
  /// Whether a fault is on that disturbs only the victim's packets and times.
  bool disturbs_victim() const;
  /// Whether the victim hears nothing for so long that it takes live ranks for silent.
  bool deafens_victim() const;
  /// Whether nothing happens to the packets of ranks other than the victim.
  bool calm_packets() const;
  /// Whether no rank can lack another's data for another reason than that it comes late: every loss
  /// is repaired soon, and no rank is cut off, stands still, goes or asks for something else. A
  /// stranger can make a rank answer that its part of a call is gone.
  bool only_late() const;
  /// Whether the victim was known to be gone before `rank` made the call, and all others came to it
  /// in time.
  bool only_lacks_gone(Rank rank) const;
  /// Whether links may delay the announcement of a rank without limit.
  bool delays_all() const { return plan_.links.has_value(); }

  /// Whether exact calls may wait so long that their deadlines come first.
  bool may_expire() const { return call_.late || plan_.deadlines_may_pass(); }
  /// Whether the calls from which bounds are learnt may leave later calls too little time to hear
  /// any rank.
  bool queues_behind_exact() const {
    return plan_.queues() && plan_.bound_rule != BoundRule::automatic;
  }
  /// Whether every rank hears that the victim refuses a call, or asks for another one, before the
  /// call could end; also before packets of the victim's next call, which tell bounded calls that
  /// nothing more of this call will come.
  bool news_is_in_time() const;

  /// How long a trace pauses `rank`.
  Duration paused(Rank rank) const;
  /// The work of all ranks: a rank that waits to hear half of them waits until those have encoded.
  Duration work() const;

 private:
  bool in_memory() const;
  bool passes(Rank from, Rank to) const;
  bool exchanges(Rank rank, std::vector<Schedule::Message> Schedule::Stage::*messages) const;

  const SimulationPlan& plan_;
  const SimulatedCall& call_;
};

}  // namespace tarpon
