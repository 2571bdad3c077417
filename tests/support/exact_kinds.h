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

  /// Asks for it on `world` ranks. A third of them own nothing.
  void ask(AllreduceArguments& call, std::uint32_t world) const {
    call.algorithm = algorithm;
    if (algorithm == Algorithm::late_rank && !std::has_single_bit(world)) {
      call.algorithm = Algorithm::tar;  // it has no schedule for so many
    } else if (algorithm == Algorithm::late_rank) {
      call.late_rank = static_cast<Rank>(world / 3);
    }
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
