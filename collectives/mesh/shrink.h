// Agreeing on who is in the next communicator, smaller or whole again: rules without thread, clock
// or socket.
//
// Who has entered rejoin() is told to all, so that they can come too.
//
// Each rank that enters tells the lowest live one, and the next one should that die. The lowest
// rank waits for all live ranks, then sends them the plan. A rank follows a plan of the rank that
// it holds for the lowest live one. Should the planner die between two of these messages, the ranks
// that have its plan fail to meet, by their deadline, and nobody joins a communicator without them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/membership.h"
#include "collectives/mesh/link.h"
#include "transport/port.h"

namespace tarpon::mesh {

class Shrinking {
 public:
  Shrinking(Rank rank, std::uint32_t world_size, Regroup what = Regroup::shrink);

  /// This rank wants to shrink; forgets a plan that came to nothing.
  void enter();
  /// It does no longer.
  void leave() { waiting_ = false; }
  void entered(Rank from);
  /// A verdict says that `ranks` (bit r: rank r) wait. Their own word may be on its way still, and
  /// only that counts for a plan.
  void told_of(std::uint64_t ranks) { told_ |= ranks; }
  void gone(Rank rank);
  void planned(Rank from, const std::string& plan);

  /// Whether it is on this rank to decide(), and all live ranks have entered.
  bool ready() const;
  void decide(const std::string& address);

  /// Once there is one: the plan to follow.
  std::optional<ShrinkPlan> take_plan();

  /// Who else has entered and waits, by its own word or a verdict's: bit r: rank r.
  std::uint64_t waiting_others() const { return (entered_ | told_) & live_ & ~(1ull << rank_); }

  /// What is waited for, in words.
  std::string lacking() const;

  std::vector<std::pair<Rank, Frame>> take_outbox() { return std::exchange(outbox_, {}); }

 private:
  Rank lowest() const;
  void tell();

  const Rank rank_;
  const Regroup what_;
  std::uint64_t live_;         // bit r: rank r
  std::uint64_t entered_ = 0;  // since the last plan
  std::uint64_t told_ = 0;     // since then, by verdicts
  bool waiting_ = false;       // this rank is in shrink() without a plan
  std::optional<ShrinkPlan> plan_;
  std::vector<std::pair<Rank, Frame>> outbox_;
};

}  // namespace tarpon::mesh
