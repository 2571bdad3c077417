// Agreeing on the members of the next communicator, smaller or whole again: rules without thread,
// clock or socket.
//
// A rank that enters shrink() or rejoin() tells all ranks. The planner, the lowest rank that may
// take part, waits for all others that may, then sends them the plan. A rank follows only a plan of
// the rank that it takes for the planner. Ranks that may take part: in shrink() the live ones; in
// rejoin() also the evicted ones, and those dead ones that have entered (they were silent once).
//
// All messages are repeated to a rank whose connection works again (greet()). If the planner dies
// between two plans, the ranks that have its plan fail to meet, by their deadline, and no rank
// joins a communicator without them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/facts.h"
#include "collectives/membership.h"
#include "collectives/mesh/frame.h"
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
  void receive(Rank from, std::string_view body);
  /// A verdict says that `ranks` (bit r: rank r) wait. Their own messages may still be under way,
  /// and only those count for a plan.
  void told_of(std::uint64_t ranks) { told_ |= ranks; }
  void planned(Rank from, const std::string& plan);

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

  const Rank rank_;
  const Facts& facts_;
  const Regroup what_;
  std::uint64_t entered_ = 0;  // since the last plan
  std::uint64_t told_ = 0;     // since then, by verdicts
  bool waiting_ = false;       // this rank is in shrink() or rejoin() without a plan
  bool told_waiting_ = false;  // it was once
  std::optional<ShrinkPlan> plan_;
  std::optional<ShrinkPlan> decided_;  // by this rank, until it enters again
  std::vector<std::pair<Rank, Frame>> outbox_;
};

}  // namespace tarpon::mesh
