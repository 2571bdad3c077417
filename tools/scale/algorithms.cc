#include "tools/scale/algorithms.h"

#include <bit>

#include "collectives/allreduce.h"

namespace tarpon::scale {
namespace {

/// Late-rank's schedule costs time that grows with the square of the ranks.
constexpr std::uint32_t kMostLateRanks = 64;

/// Those of the library.
std::optional<tarpon::Algorithm> of_library(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::ring:
      return tarpon::Algorithm::ring;
    case Algorithm::tar:
      return tarpon::Algorithm::tar;
    case Algorithm::circulant:
      return tarpon::Algorithm::circulant;
    case Algorithm::one_shot:
      return tarpon::Algorithm::one_shot;
    case Algorithm::recursive_doubling:
      return tarpon::Algorithm::recursive_doubling;
    case Algorithm::two_level_tar:
      return tarpon::Algorithm::two_level_tar;
    case Algorithm::late_rank:
      return tarpon::Algorithm::late_rank;
    case Algorithm::halving_doubling:
    case Algorithm::bounded:
      break;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  if (const auto known = of_library(algorithm)) return name(*known);
  return algorithm == Algorithm::bounded ? "bounded" : "halving-doubling";
}

std::optional<Algorithm> algorithm_named(std::string_view name) {
  for (const Algorithm algorithm : kAlgorithms) {
    if (name_of(algorithm) == name) return algorithm;
  }
  return std::nullopt;
}

bool can_run(Algorithm algorithm, std::uint32_t ranks) {
  if (algorithm != Algorithm::late_rank) return ranks >= 2;
  return std::has_single_bit(ranks) && ranks >= 2 && ranks <= kMostLateRanks;
}

Schedule schedule_for(Algorithm algorithm, std::uint32_t ranks, Rank rank, std::uint64_t bytes) {
  const std::uint64_t count = (bytes + sizeof(float) - 1) / sizeof(float);
  const auto known = of_library(algorithm);
  if (!known) return halving_doubling_schedule(ranks, rank, count, sizeof(float));
  AllreduceArguments arguments;
  arguments.count = count;
  arguments.algorithm = *known;
  arguments.late_rank = kLateRank;
  return schedule_of(arguments, ranks, rank, 0);
}

/// The ranks below the power of two halve and double; chunk c is made by rank c of them. Ranks
/// beyond it hand their bucket to the rank so many below.
Schedule halving_doubling_schedule(std::uint32_t world, Rank rank, std::uint64_t count,
                                   std::size_t element_bytes) {
  using Pieces = std::vector<Schedule::Piece>;
  constexpr std::size_t kFold = 0, kHalve = 1, kDouble = 2, kUnfold = 3;  // stages
  const std::uint32_t power = std::bit_floor(world);
  const bool beyond = rank >= power;
  const bool folds = !beyond && rank + power < world;
  const ShardLayout layout{count, element_bytes, power};
  // Chunks of rank's half after so many halvings: those whose numbers begin with the same bits.
  const auto half = [&](std::uint32_t of, std::uint32_t halvings) {
    const std::uint32_t size = power >> halvings;
    return std::pair(of / size * size, size);
  };
  const auto levels = static_cast<std::uint32_t>(std::countr_zero(power));
  const std::uint32_t first = folds ? 1 : 0;  // additions before the halvings
  Schedule schedule;
  for (std::uint32_t chunk = 0; chunk < power; ++chunk) {
    std::uint32_t halvings = 0;  // in which this rank keeps the chunk
    while (!beyond && halvings < levels && half(rank, halvings + 1) == half(chunk, halvings + 1)) {
      ++halvings;
    }
    schedule.chunks.push_back({.elements = layout.elements(chunk),
                               .additions = beyond ? 0 : first + halvings,
                               .stored = beyond || chunk != rank});
  }
  schedule.stages.resize(4);
  const auto pieces = [&](std::uint32_t from, std::uint32_t size, auto version) {
    Pieces result;
    for (std::uint32_t chunk = from; chunk < from + size; ++chunk) {
      result.push_back({.chunk = chunk, .version = version(chunk)});
    }
    return result;
  };
  const auto last = [&](std::uint32_t chunk) { return schedule.chunks[chunk].last_version(); };
  if (beyond || folds) {
    const auto partner = static_cast<Rank>(beyond ? rank - power : rank + power);
    const Pieces own = pieces(0, power, [](std::uint32_t) { return 0u; });
    const Pieces sums = pieces(0, power, [](std::uint32_t) { return 1u; });
    const Pieces results = pieces(0, power, last);
    auto& fold = schedule.stages[kFold];
    auto& unfold = schedule.stages[kUnfold];
    schedule.add(beyond ? fold.sends : fold.receives, partner, beyond ? own : sums);
    schedule.add(beyond ? unfold.receives : unfold.sends, partner, results);
  }
  for (std::uint32_t level = 1; level <= levels && !beyond; ++level) {
    const auto partner = static_cast<Rank>(rank ^ power >> level);
    const auto [mine, size] = half(rank, level);
    const auto [theirs, same] = half(partner, level);
    schedule.add(schedule.stages[kHalve].sends, partner,
                 pieces(theirs, same, [&](std::uint32_t) { return first + level - 1; }));
    schedule.add(schedule.stages[kHalve].receives, partner,
                 pieces(mine, size, [&](std::uint32_t) { return first + level; }));
  }
  for (std::uint32_t level = levels; level >= 1 && !beyond; --level) {
    const auto partner = static_cast<Rank>(rank ^ power >> level);
    const auto [mine, size] = half(rank, level);
    const auto [theirs, same] = half(partner, level);
    schedule.add(schedule.stages[kDouble].sends, partner, pieces(mine, size, last));
    schedule.add(schedule.stages[kDouble].receives, partner, pieces(theirs, same, last));
  }
  return schedule;
}

}  // namespace tarpon::scale
