// How far the results of a bounded call differ between the ranks because of losses in stage 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collectives/communicator.h"

namespace tarpon {

struct Divergence {
  std::uint64_t count = 0;      // elements compared
  std::uint64_t differing = 0;  // elements that are not the same on all ranks
  double max_relative = 0;      // largest |a - b| / max(|a|, |b|) of two ranks' values; NaN against
                                // a number counts as 1
  double exact_us = 0;          // the slower of the exact calls, at this rank
  double share() const {
    return count == 0 ? 0 : static_cast<double>(differing) / static_cast<double>(count);
  }
};

/// Compares `result` over all ranks: exact AllReduces with a tag of their own find the smallest and
/// largest value of each element. Collective. `low` and `high` are buffers of the size of `result`.
/// Returns nullopt for integers, and if one of the calls does not complete.
std::optional<Divergence> measure_divergence(Communicator& communicator,
                                             std::span<const std::byte> result, DataType type,
                                             Duration deadline, std::span<std::byte> low,
                                             std::span<std::byte> high);

}  // namespace tarpon
