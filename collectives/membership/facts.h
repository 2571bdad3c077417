// What a rank knows about the others: live, left, evicted or dead, and how that is known.
//
// One row per rank. A row only rises (live < left < evicted < dead), so that ranks which learn of
// the same events in different orders end with the same rows. A rank that learns a higher row
// floods it over the control mesh; no total order is needed, and no packet waits for a fact.
//
// All code that depends on the membership of the job reads these rows: exact and bounded calls,
// retention, Communicator::close(), shrink() and rejoin(), eviction, and the choice of a decider.
// Suspicion (a rank is silent) is not a fact: it comes and goes, and each rank has its own.
//
// Values and a table of values; not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transport/endpoint.h"

namespace tarpon {

/// In rising order. The numbers travel in frames of the control mesh and never change.
enum class Standing : std::uint8_t {
  live = 0,
  left = 1,     // said goodbye: it makes no further call, and serves those that it has made
  evicted = 2,  // left out by the others until rejoin()
  dead = 3,     // its process is gone; or it was silent for too long, and may come back by rejoin()
};

std::string_view name(Standing standing);

struct Fact {
  Rank rank = 0;
  Standing standing = Standing::live;
  /// One line without the rank's name: "its control connection was reset". Empty for live and left.
  std::string evidence = {};
  /// evicted, or dead by silence: exactly half of the live ranks voted for it.
  bool without_majority = false;
  /// left: whether its connection is still open, so that it serves operations below `next_numbers`.
  bool serves = false;
  /// left and `serves`: the next number of each tag that some rank has not passed yet. All
  /// operations of a tag that is not listed are over at every rank.
  std::vector<NextNumber> next_numbers = {};

  /// "rank 2 is dead: its control connection was reset"; "rank 2 left the communicator".
  std::string text() const;
};

class Facts {
 public:
  /// All ranks are live. REQUIRES: world_size <= 64.
  explicit Facts(std::uint32_t world_size);

  /// Stores `fact` if it raises its row, and returns whether it does. A rank that left and no
  /// longer serves is above one that left and serves.
  bool learn(const Fact& fact);

  std::uint32_t world_size() const { return static_cast<std::uint32_t>(rows_.size()); }
  const Fact& of(Rank rank) const { return rows_[rank]; }
  Standing standing(Rank rank) const { return rows_[rank].standing; }
  bool is_live(Rank rank) const { return standing(rank) == Standing::live; }

  /// Ranks whose row is `standing`. Bit r: rank r.
  std::uint64_t ranks(Standing standing) const;
  std::uint64_t live() const { return ranks(Standing::live); }
  /// Ranks that are live or evicted. rejoin() waits for these, where there are any.
  std::uint64_t can_rejoin() const;

  /// The lowest live rank: it makes the decisions that all ranks must share. world_size() when
  /// there is none.
  Rank decider() const;

  /// Joins the Fact::text() of all ranks in `ranks` (bit r: rank r) that are not live, in rank
  /// order, with "; " between them.
  std::string text(std::uint64_t ranks = ~std::uint64_t{0}) const;

 private:
  std::vector<Fact> rows_;
};

}  // namespace tarpon
