// The AllReduces that the scale model compares, and who sends what to whom in them.
//
//   ring, tar, circulant, one-shot, recursive-doubling, 2d-tar, late-rank
//                     the schedules that the library runs (collectives/engine/schedules)
//   halving-doubling  2 log2 N steps of S/2, S/4, ...; the ranks beyond a power of two fold their
//                     bucket into a partner's first and get the result last (Thakur et al. 2005):
//                     Gloo's, and so the model's own
//   bounded           Tarpon's: TAR's transfers, bounded (tools/scale/bounded_flow.h)
//
// To add one: a value of Algorithm, its name, and a case in schedule_for().
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "collectives/engine/schedules/schedule.h"

namespace tarpon::scale {

enum class Algorithm : std::uint8_t {
  ring,
  halving_doubling,
  tar,
  bounded,
  circulant,
  one_shot,
  recursive_doubling,
  two_level_tar,
  late_rank,
};

inline constexpr Algorithm kAlgorithms[] = {Algorithm::ring,
                                            Algorithm::halving_doubling,
                                            Algorithm::tar,
                                            Algorithm::bounded,
                                            Algorithm::circulant,
                                            Algorithm::one_shot,
                                            Algorithm::recursive_doubling,
                                            Algorithm::two_level_tar,
                                            Algorithm::late_rank};

/// "ring", "halving-doubling", "tar", "bounded", "2d-tar", ...: the library's names where it has
/// one.
std::string_view name_of(Algorithm algorithm);
std::optional<Algorithm> algorithm_named(std::string_view name);

/// Whether `ranks` ranks can run it.
bool can_run(Algorithm algorithm, std::uint32_t ranks);

/// The rank that late-rank takes for the late one.
inline constexpr Rank kLateRank = 0;

/// What `rank` does with a bucket of `bytes`, in floats: the last one may be short. REQUIRES:
/// can_run(), rank < ranks; not bounded.
Schedule schedule_for(Algorithm algorithm, std::uint32_t ranks, Rank rank, std::uint64_t bytes);

/// Recursive halving, then doubling, as above. REQUIRES: world >= 2, rank < world, those of
/// ShardLayout.
Schedule halving_doubling_schedule(std::uint32_t world, Rank rank, std::uint64_t count,
                                   std::size_t element_bytes);

}  // namespace tarpon::scale
