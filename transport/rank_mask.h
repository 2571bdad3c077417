// Sets of ranks as masks of 64 bits. Bit r: rank r.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/port.h"

namespace tarpon {

inline constexpr std::size_t kMaskRanks = 64;

/// REQUIRES: rank < kMaskRanks.
constexpr std::uint64_t bit(Rank rank) {
  return std::uint64_t{1} << rank;
}

/// The ranks [0, count), for any count.
constexpr std::uint64_t first_ranks(std::uint32_t count) {
  return count >= kMaskRanks ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

/// The ranks of `mask`, in rising order.
inline std::vector<Rank> ranks_of(std::uint64_t mask) {
  std::vector<Rank> ranks;
  for (; mask != 0; mask &= mask - 1) ranks.push_back(static_cast<Rank>(std::countr_zero(mask)));
  return ranks;
}

/// REQUIRES: all of `ranks` < 64.
inline std::uint64_t mask_of(const std::vector<Rank>& ranks) {
  std::uint64_t mask = 0;
  for (const Rank rank : ranks) mask |= bit(rank);
  return mask;
}

}  // namespace tarpon
