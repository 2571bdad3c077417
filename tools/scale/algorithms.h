// The AllReduces that the scale model compares, and who sends what to whom in them.
//
//   ring, tar, circulant, one-shot, recursive-doubling, 2d-tar
//                     the schedules that the library runs (collectives/engine/schedules)
//                     as they are over TCP: a rank sends a whole piece on
//   late-rank, tar-shares
//                     two schedules of the library for one late rank, pipelined as it runs them;
//                     tar-shares is TAR in which the late rank owns nothing and all others alike
//   stragglar         late-rank with one chunk a rank, round by round, as published
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
  tar_shares,
  stragglar,
};

inline constexpr Algorithm kAlgorithms[] = {Algorithm::ring,
                                            Algorithm::halving_doubling,
                                            Algorithm::tar,
                                            Algorithm::bounded,
                                            Algorithm::circulant,
                                            Algorithm::one_shot,
                                            Algorithm::recursive_doubling,
                                            Algorithm::two_level_tar,
                                            Algorithm::late_rank,
                                            Algorithm::tar_shares,
                                            Algorithm::stragglar};

/// "ring", "halving-doubling", "tar", "bounded", "2d-tar", ...: the library's names where it has
/// one.
std::string_view name_of(Algorithm algorithm);
std::optional<Algorithm> algorithm_named(std::string_view name);

/// Whether `ranks` ranks can run it.
bool can_run(Algorithm algorithm, std::uint32_t ranks);

/// Which numbers of ranks can_run() allows, for example "2, 3, ... 64".
std::string_view rank_counts(Algorithm algorithm);

/// The rank that late-rank, stragglar and tar-shares take for the late one.
inline constexpr Rank kLateRank = 0;

/// Time from the arrival of the late rank to the end, as published with StragglAR ("Efficient
/// AllReduce with Stragglers", 2025, arXiv 2505.23523), in times of a bucket on a link: of
/// stragglar (ranks - 2 + log2 ranks) / (ranks - 1), of a ring that waits 2 (ranks - 1) / ranks.
/// nullopt: there is no published time. REQUIRES: can_run().
std::optional<double> published_after_arrival(Algorithm algorithm, std::uint32_t ranks);

/// What `rank` does with a bucket of `bytes`, in floats: the last one may be short. REQUIRES:
/// can_run(), rank < ranks; not bounded.
Schedule schedule_for(Algorithm algorithm, std::uint32_t ranks, Rank rank, std::uint64_t bytes);

/// Recursive halving, then doubling, as above. REQUIRES: world >= 2, rank < world, those of
/// ShardLayout.
Schedule halving_doubling_schedule(std::uint32_t world, Rank rank, std::uint64_t count,
                                   std::size_t element_bytes);

}  // namespace tarpon::scale
