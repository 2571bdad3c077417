// What exact calls run, for tests of all of it.
#pragma once

#include <bit>
#include <string>
#include <vector>

#include "collectives/allreduce.h"

namespace tarpon::testing_support {

/// An algorithm, TAR also with shares that are not even.
struct ExactKind {
  constexpr ExactKind(Algorithm its, bool with_uneven_shares = false)  // converts
      : algorithm(its), uneven(with_uneven_shares) {}

  std::string text() const {
    return std::string(name(algorithm)) + (uneven ? " with uneven shares" : "");
  }

  /// Whether there is a schedule for so many ranks.
  bool runs_on(std::uint32_t world) const {
    return algorithm != Algorithm::late_rank || std::has_single_bit(world);
  }

  /// `world`, or the next smaller count of ranks that it runs on.
  std::uint16_t ranks_up_to(std::uint16_t world) const {
    return runs_on(world) ? world : std::bit_floor(world);
  }

  /// Asks for it on `world` ranks. A third of them own nothing. REQUIRES: runs_on(world).
  void ask(AllreduceArguments& call, std::uint32_t world) const {
    call.algorithm = algorithm;
    if (algorithm == Algorithm::late_rank) call.late_rank = static_cast<Rank>(world / 3);
    if (!uneven) return;
    std::vector<double> weights;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      weights.push_back(rank % 3 == 1 ? 0 : 1 + rank);
    }
    call.shares = Shares(weights);
  }

  Algorithm algorithm;
  bool uneven;
};

inline constexpr ExactKind kExactKinds[] = {
    {Algorithm::tar},           {Algorithm::tar, true}, {Algorithm::circulant},
    {Algorithm::one_shot},      {Algorithm::ring},      {Algorithm::recursive_doubling},
    {Algorithm::two_level_tar}, {Algorithm::late_rank}};

}  // namespace tarpon::testing_support
