// Agreeing on the members of the next communicator, smaller or whole again: rules without thread,
// clock or socket.
//
// A rank that enters shrink() or rejoin() tells all ranks. The planner waits for all other members,
// then sends them the plan. It is rank 0 of the next communicator, where the others meet.
//
// shrink(). The members are the live ranks, and the lowest of them is the planner.
//
// rejoin(). The members are the live and the evicted ranks, and the dead ones that have entered
// (they were silent once). The planner is the lowest live or evicted rank: of a dead one only some
// ranks may know that it is back. When a cut job of which each half excluded the other is healed,
// no rank is live or evicted. Then nothing tells which ranks will come, so the members are all dead
// ranks whose processes are not proven gone, and the lowest of them is the planner. It waits for
// all of them: a rank that never comes, and of whose end there is no proof, costs every other one
// its deadline, and the error names it.
//
// A rank follows only a plan of the rank that it takes for the planner, except where no rank is
// live or evicted: a proof is known to one rank alone, so two ranks may differ about the planner.
//
// A rank tells a rank whose connection works again that it waits (greet()), with the number of its
// entry. The planner answers with its plan when the plan was made for that entry: a rank that has
// entered again waits for another plan. If the planner dies when its plan has reached some ranks
// only, these fail to meet, and the others wait for them, all until their deadlines; no rank joins
// a communicator without them. Then they enter again. A plan that comes after leave() and before
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
  /// `facts` outlives the rules.
  Shrinking(Rank rank, const Facts& facts, Regroup what);

  /// This rank waits for a plan; forgets an earlier one.
  void enter();
  /// It no longer does.
  void leave();
  /// The body of a SHRINK or REJOIN frame: `from` waits, or no longer. Malformed ones are ignored.
  /// Repeats the plan to a rank that waits for it.
  void receive(Rank from, std::string_view body);
  /// A verdict says that `ranks` (bit r: rank r) wait. Their own messages may still be under way,
  /// and only those count for a plan.
  void told_of(std::uint64_t ranks) { told_ |= ranks; }
  void planned(Rank from, const std::string& plan);
  /// This rank has proof that the process of `rank` is gone: it waits no longer.
  void gone(Rank rank);

  /// Whether this rank is the planner and all others have entered.
  bool ready() const;
  void decide(const std::string& address);

  /// Once there is one: the plan to follow.
  std::optional<ShrinkPlan> take_plan();

  /// Other ranks that wait, by their own message or a verdict. Bit r: rank r.
  std::uint64_t waiting_others() const;

  /// Ranks that this rank waits for now. Bit r: rank r.
  std::uint64_t needed() const;
  /// The same in words.
  std::string lacking() const;

  /// Sends `rank` the frames again that a broken connection may have lost.
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
  std::uint64_t entered_ = 0;  // since the last plan
  std::uint64_t told_ = 0;     // since then, by verdicts
  std::uint64_t gone_ = 0;
  bool waiting_ = false;    // this rank is in shrink() or rejoin() without a plan
  std::uint8_t entry_ = 0;  // of this rank, 1 to 255 in turn; 0: none yet
  std::optional<ShrinkPlan> plan_;
  std::optional<ShrinkPlan> decided_;  // by this rank, until it enters again
  std::vector<std::uint8_t> entries_;  // by rank: its latest entry, as told
  std::vector<std::uint8_t> planned_;  // those that `decided_` was made for
  std::vector<std::pair<Rank, Frame>> outbox_;
};

}  // namespace tarpon::mesh
