// The contributors to the slots of a bounded call in the memory of a host: they go with the results
// of a slice, from its owner to the other ranks of the host.
//
// Not thread-safe, but the memory is shared with other processes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/engine/schedules/host_plan.h"

namespace tarpon {

class HostSlots {
 public:
  /// `plan`: of a bounded call; outlives it.
  HostSlots(const HostPlan& plan, std::uint32_t slot_bytes, std::size_t element_bytes,
            std::uint32_t world)
      : plan_(plan), slot_bytes_(slot_bytes), width_(element_bytes), world_(world) {}

  /// Where the contributors to the slots of each shard are kept: of shard s of slice l at
  /// l * hosts + s. `reduced`: the number there of the shard that this rank reduces; its slots have
  /// contributors before they have results. REQUIRES: once, before the other functions.
  void set(std::vector<std::uint64_t*> of_shards, std::size_t reduced) {
    contributors_ = std::move(of_shards);
    reduced_ = reduced;
  }

  /// The shard that this rank reduces has no result.
  void lose_reduced();

  /// Writes the contributors to a piece of a slice to its place, whose result area is `area`.
  void spread(std::uint32_t step, std::uint32_t owner, std::uint32_t shard, std::byte* area) const;
  /// Copies the slots of a piece that have contributors from the result area of its place to `to`,
  /// and notes their contributors.
  void copy(std::uint32_t step, std::uint32_t owner, std::uint32_t shard, const std::byte* area,
            std::byte* to) const;
  /// Notes that a piece has no contributors.
  void clear(std::uint32_t step, std::uint32_t owner, std::uint32_t shard) const;

  /// Calls f(elements of the piece) for the slots that have no result.
  template <typename F>
  void for_empty(std::uint32_t step, std::uint32_t owner, std::uint32_t shard, F f) const;

  /// Elements of a slice that have contributors.
  std::uint64_t elements(std::uint32_t owner) const;

 private:
  std::uint32_t count(std::uint32_t step, std::uint32_t owner, std::uint32_t shard) const;
  std::uint64_t* kept(std::uint32_t step, std::uint32_t owner, std::uint32_t shard) const;

  const HostPlan& plan_;
  const std::uint32_t slot_bytes_;
  const std::size_t width_;  // bytes of an element
  const std::uint32_t world_;
  std::vector<std::uint64_t*> contributors_;
  std::size_t reduced_ = 0;
  std::vector<std::uint64_t> none_;  // lose_reduced()
};

template <typename F>
void HostSlots::for_empty(std::uint32_t step, std::uint32_t owner, std::uint32_t shard, F f) const {
  const std::uint64_t elements = plan_.piece(step, owner, shard).count;
  if (std::size_t{owner} * plan_.hosts() + shard == reduced_) return f(Range{0, elements});
  const std::uint64_t* const here = kept(step, owner, shard);
  const std::uint32_t count = this->count(step, owner, shard);
  const std::uint64_t a_slot = slot_bytes_ / width_;
  for (std::uint32_t first = 0, end = 0; first < count; first = end) {
    for (end = first + 1; end < count && (here[end] != 0) == (here[first] != 0);) ++end;
    if (here[first] != 0) continue;
    const std::uint64_t begin = first * a_slot;
    f(Range{begin, std::min(elements, end * a_slot) - begin});
  }
}

}  // namespace tarpon
