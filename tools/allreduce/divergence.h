// How far the results of a bounded call differ between the ranks: what stage 2 lost on some of
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collectives/communicator.h"

namespace tarpon {

struct Divergence {
  std::uint64_t count = 0;      // elements compared
  std::uint64_t differing = 0;  // of them not the same on all ranks
  double max_relative = 0;      // largest |a - b| / max(|a|, |b|) of two ranks' values; NaN against
                                // a number counts as 1
  double exact_us = 0;          // the slower of the exact calls, at this rank
  double share() const {
    return count == 0 ? 0 : static_cast<double>(differing) / static_cast<double>(count);
  }
};

/// Compares `result` over all ranks, by exact AllReduces (of a tag of their own) of its largest and
/// smallest values. Collective. `low` and `high` are room for as many elements. Nothing where one
/// of the calls does not complete.
std::optional<Divergence> measure_divergence(Communicator& communicator,
                                             std::span<const std::byte> result, DataType type,
                                             Duration deadline, std::span<std::byte> low,
                                             std::span<std::byte> high);

}  // namespace tarpon
