// How a collective beside AllReduce goes through the memory of the only host: in which steps, and
// which elements a rank puts into its place and takes from those of other ranks.
//
// The place of a rank has an area for each receiver, or one area where all receivers take the same
// elements. A step takes a piece of each area. So all receivers work from the first step on.
//
// A value, from the arguments of a call and the shape of the memory alone: alike on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/engine/schedules/collective_parts.h"

namespace tarpon {

class ExchangePlan {
 public:
  /// `place_bytes`: of the input of a rank. `parts` outlives the plan. REQUIRES: a collective other
  /// than AllReduce, no message, not by_pair; world >= 2.
  ExchangePlan(const CollectiveParts& parts, std::uint32_t world, std::size_t element_bytes,
               std::uint64_t place_bytes);

  /// An empty bucket has one step, too.
  std::uint32_t steps() const { return steps_; }
  /// Whether a receiver adds up what it takes and its own contribution.
  bool adds() const { return reduces(parts_.collective); }
  /// Whether all receivers of a rank take the same elements, which lie in one area.
  bool shares() const;
  /// Whether `to` takes elements of `from`: in any call of the collective and root, also an empty
  /// one. REQUIRES: from != to.
  bool passes(Rank from, Rank to) const;

  /// The elements that go from one rank to another: in the bucket of the input, and in that of the
  /// output. REQUIRES: passes(from, to), or, for this rank's own contribution, adds() and
  /// from == to.
  Range source(Rank from, Rank to) const;
  Range target(Rank from, Rank to) const;
  /// The part of such a range that a step takes. Empty behind the end of a short one.
  Range piece(Range all, std::uint32_t step) const;
  /// The elements of such a range up to the end of `steps` steps.
  std::uint64_t reached(const Range& all, std::uint32_t steps) const;
  /// Where the area of a receiver lies in a place, in bytes.
  std::uint64_t offset(Rank to) const { return shares() ? 0 : to * piece_ * element_bytes_; }

 private:
  std::uint64_t longest() const;

  const CollectiveParts& parts_;
  const std::size_t element_bytes_;
  const std::uint64_t piece_;  // elements
  const std::uint32_t steps_;
};

}  // namespace tarpon
