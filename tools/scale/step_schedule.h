// Who sends what to whom in the AllReduces that the scale model compares: pure functions of
// (algorithm, ranks, bytes, rank, step), so that no table of ranks x steps has to be kept.
//
// A rank sends its step's message when the receive of the step before is complete; with tar, when
// the receives of the stage before are. The k-th step of the sender is the k-th of the receiver.
//
//   ring              2(N-1) steps to the successor (Patarasuk & Yuan 2009)
//   halving_doubling  2 log2 N steps of S/2, S/4, ...; the ranks beyond a power of two fold their
//                     bucket into a partner's first and get the result last (Thakur et al. 2005)
//   tar               Transpose AllReduce: everybody sends each owner its shard, rank-1 first, then
//                     rank-2, ...; an owner that has all sends the reduced shard to all likewise
//   bounded           Tarpon's: the same transfers, bounded; it has no steps
//                     (tools/scale/bounded_flow.h)
//
// To add a schedule: a value of Algorithm, its name, a case in step_count and in step_of.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "transport/port.h"

namespace tarpon::scale {

enum class Algorithm : std::uint8_t { ring, halving_doubling, tar, bounded };

inline constexpr Algorithm kAlgorithms[] = {Algorithm::ring, Algorithm::halving_doubling,
                                            Algorithm::tar, Algorithm::bounded};

/// "ring", "halving-doubling", "tar", "bounded".
std::string_view name_of(Algorithm algorithm);
std::optional<Algorithm> algorithm_named(std::string_view name);

/// Bytes of shard `shard` of `ranks`; they differ by one at most and add up to `bytes`.
std::uint64_t shard_bytes(std::uint64_t bytes, std::uint32_t ranks, std::uint32_t shard);

/// What one rank does in one step; 0 bytes: nothing to send, or nothing to wait for.
struct Step {
  Rank to = 0;
  std::uint64_t send_bytes = 0;
  Rank from = 0;
  std::uint64_t receive_bytes = 0;
};

/// The same for all ranks. REQUIRES: ranks >= 2; not bounded.
std::uint32_t step_count(Algorithm algorithm, std::uint32_t ranks);

/// REQUIRES: rank < ranks, step < step_count(), bytes >= ranks; not bounded.
Step step_of(Algorithm algorithm, std::uint32_t ranks, std::uint64_t bytes, Rank rank,
             std::uint32_t step);

}  // namespace tarpon::scale
