// The number of a rank within its job.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>

namespace tarpon {

/// Counts from 0.
using Rank = std::uint16_t;

/// A datagram whose source address belongs to no rank of the job.
inline constexpr Rank kUnknownRank = 0xffff;
/// A datagram for all other ranks.
inline constexpr Rank kAllRanks = 0xfffe;

}  // namespace tarpon
