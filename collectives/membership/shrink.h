// Agreeing on the members of the next communicator, smaller or whole again: rules without thread,
// clock or socket.
//
// A rank that enters shrink() or rejoin() tells all ranks. The planner waits for all other members,
// then sends them the plan. It is rank 0 of the next communicator, and the others meet at its
// address.
//
// shrink(). The members are the live ranks, and the lowest of them is the planner.
//
// rejoin(). The members are the live and the evicted ranks, and the dead ones that have entered
// (they were silent once). The planner is the lowest live or evicted rank, because only some ranks
// may know that a dead one is back. When two halves of a job have excluded each other and the
// network between them works again, no rank is live or evicted. Then nothing tells which ranks will
// come, so the members are all dead ranks whose processes are not proven gone, and the lowest of
// them is the planner. It waits for all of them. If one never comes and is not proven gone, all
// others wait until their deadlines, and the error names it.
//
// A rank follows only a plan of the rank that it takes for the planner, except where no rank is
// live or evicted: a proof is known to one rank alone, so two ranks may differ about the planner.
//
// When a connection works again, a rank tells the peer that it waits (greet()), with the number of
// its entry. The planner answers with its plan if the plan was made for that entry: a rank that has
// entered again waits for another plan. If the planner dies after its plan has reached only some
// ranks, these fail to meet, and the others wait for them, all until their deadlines; no rank joins
// a communicator without them. Then they enter again. A plan that arrives after leave() and before
// the next enter() is not followed, and that entry ends at its deadline too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/membership/facts.h"
#include "collectives/membership/frame.h"
#include "collectives/membership/membership.h"
#include "transport/port.h"

namespace tarpon::mesh {

class Shrinking {
 public:
  /// `facts` outlives this object.
  Shrinking(Rank rank, const Facts& facts, Regroup what);

  /// Begins to wait for a plan, and forgets an earlier one.
  void enter();
  /// Ends the wait for a plan.
  void leave();
  /// Handles the body of a SHRINK or REJOIN frame: `from` waits, or no longer does. Ignores
  /// malformed ones. Repeats the plan to a rank that waits for it.
  void receive(Rank from, std::string_view body);
  /// Notes that a verdict names `ranks` (bit r: rank r) as waiting. Only their own messages, which
  /// may not have arrived yet, count for a plan.
  void told_of(std::uint64_t ranks) { told_ |= ranks; }
  void planned(Rank from, const std::string& plan);
  /// Notes the proof that the process of `rank` is gone: that rank no longer waits.
  void gone(Rank rank);

  /// Whether this rank is the planner and all others have entered.
  bool ready() const;
  void decide(const std::string& address);

  /// Returns the plan to follow, once there is one.
  std::optional<ShrinkPlan> take_plan();

  /// Other ranks that wait, by their own message or a verdict. Bit r: rank r.
  std::uint64_t waiting_others() const;

  /// The same, and this rank where it waits itself: what a verdict of this rank tells the others.
  std::uint64_t waiting() const;

  /// Ranks that this rank waits for now. Bit r: rank r.
  std::uint64_t needed() const;
  /// Says in words what is missing, for the text of an error.
  std::string lacking() const;

  /// Resends to `rank` the frames that a broken connection may have lost.
  void greet(Rank rank);

  std::vector<std::pair<Rank, Frame>> take_outbox() { return std::exchange(outbox_, {}); }

 private:
  std::uint64_t members() const;
  Rank planner() const;
  void tell(Rank rank);
  void send_plan(Rank rank);

  const Rank rank_;
  const Facts& facts_;
  const Regroup what_;
  std::uint64_t entered_ = 0;  // ranks that have entered since the last plan
  std::uint64_t told_ = 0;     // ranks that verdicts have named since then
  std::uint64_t gone_ = 0;
  bool waiting_ = false;    // this rank is in shrink() or rejoin() without a plan
  std::uint8_t entry_ = 0;  // number of this rank's entry, 1 to 255 in turn; 0: none yet
  std::optional<ShrinkPlan> plan_;
  std::optional<ShrinkPlan> decided_;  // plan of this rank, until it enters again
  std::vector<std::uint8_t> entries_;  // by rank: number of its latest entry, as told
  std::vector<std::uint8_t> planned_;  // the entries that `decided_` was made for
  std::vector<std::pair<Rank, Frame>> outbox_;
};

}  // namespace tarpon::mesh
