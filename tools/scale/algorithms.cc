#include "tools/scale/algorithms.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "collectives/allreduce.h"

namespace tarpon::scale {
namespace {

/// Late-rank's schedule costs time that grows with the square of the ranks.
constexpr std::uint32_t kMostLateRanks = 64;

/// Names that the library does not have.
constexpr std::pair<Algorithm, std::string_view> kOwnNames[] = {
    {Algorithm::halving_doubling, "halving-doubling"},
    {Algorithm::bounded, "bounded"},
    {Algorithm::tar_shares, "tar-shares"},
    {Algorithm::stragglar, "stragglar"}};

bool needs_power_of_two(Algorithm algorithm) {
  return algorithm == Algorithm::late_rank || algorithm == Algorithm::stragglar;
}

/// Cuts each chunk into parts that go one after another, so that the first ones go on before the
/// last ones have come, whatever the round. So the library runs schedules, slot by slot.
Schedule pipelined(const Schedule& whole) {
  // Smaller or more parts would shorten calls by less than 1 / kMostParts.
  constexpr std::uint64_t kLeastElements = (8 << 10) / sizeof(float);
  constexpr std::uint64_t kMostParts = 32;
  std::uint64_t longest = 0;
  for (const Schedule::Chunk& chunk : whole.chunks) {
    longest = std::max(longest, chunk.elements.count);
  }
  const auto parts = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(longest / kLeastElements, 1, kMostParts));
  Schedule result;
  for (const Schedule::Chunk& chunk : whole.chunks) {
    for (std::uint64_t part = 0; part < parts; ++part) {
      const std::uint64_t begin = chunk.elements.count * part / parts;
      const std::uint64_t end = chunk.elements.count * (part + 1) / parts;
      result.chunks.push_back(chunk);
      result.chunks.back().elements = {chunk.elements.first + begin, end - begin};
    }
  }
  const auto add = [&](std::vector<Schedule::Message>& messages, const Schedule::Message& message) {
    std::vector<Schedule::Piece> pieces;
    for (std::uint32_t part = 0; part < parts; ++part) {
      for (Schedule::Piece piece : whole.pieces_of(message)) {
        piece.chunk = piece.chunk * parts + part;
        pieces.push_back(piece);
      }
    }
    result.add(messages, message.peer, pieces);
  };
  for (const Schedule::Stage& stage : whole.stages) {
    Schedule::Stage& cut = result.stages.emplace_back();
    for (const Schedule::Message& message : stage.sends) add(cut.sends, message);
    for (const Schedule::Message& message : stage.receives) add(cut.receives, message);
  }
  return result;
}

Shares nothing_for_late_rank(std::uint32_t ranks) {
  std::vector<double> weights(ranks, 1);
  weights[kLateRank] = 0;
  return Shares(weights);
}

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
    case Algorithm::tar_shares:
    case Algorithm::stragglar:
      break;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  if (const auto known = of_library(algorithm)) return name(*known);
  for (const auto& [own, name] : kOwnNames) {
    if (own == algorithm) return name;
  }
  return "";
}

std::optional<Algorithm> algorithm_named(std::string_view name) {
  for (const Algorithm algorithm : kAlgorithms) {
    if (name_of(algorithm) == name) return algorithm;
  }
  return std::nullopt;
}

bool can_run(Algorithm algorithm, std::uint32_t ranks) {
  if (ranks < 2) return false;
  if (algorithm == Algorithm::tar_shares) return ranks <= Shares::kMostRanks;
  if (needs_power_of_two(algorithm)) return std::has_single_bit(ranks) && ranks <= kMostLateRanks;
  return true;
}

std::string_view rank_counts(Algorithm algorithm) {
  static_assert(kMostLateRanks == 64 && Shares::kMostRanks == 64);
  if (needs_power_of_two(algorithm)) return "2, 4, 8, ... 64";
  return algorithm == Algorithm::tar_shares ? "2, 3, ... 64" : "2 or more";
}

std::optional<double> published_after_arrival(Algorithm algorithm, std::uint32_t ranks) {
  const double others = ranks - 1;
  if (algorithm == Algorithm::ring) return 2 * others / ranks;
  if (algorithm != Algorithm::stragglar) return std::nullopt;
  return (others - 1 + std::countr_zero(ranks)) / others;
}

Schedule schedule_for(Algorithm algorithm, std::uint32_t ranks, Rank rank, std::uint64_t bytes) {
  const std::uint64_t count = (bytes + sizeof(float) - 1) / sizeof(float);
  if (algorithm == Algorithm::stragglar) {
    return late_rank_schedule(ranks, rank, 0, count, sizeof(float), kLateRank, 1);
  }
  if (algorithm == Algorithm::tar_shares) {
    return pipelined(
        transpose_schedule(ranks, rank, 0, count, sizeof(float), nothing_for_late_rank(ranks)));
  }
  const auto known = of_library(algorithm);
  if (!known) return halving_doubling_schedule(ranks, rank, count, sizeof(float));
  AllreduceArguments arguments;
  arguments.count = count;
  arguments.algorithm = *known;
  arguments.late_rank = kLateRank;
  const Schedule schedule = schedule_of(arguments, ranks, rank, 0);
  return algorithm == Algorithm::late_rank ? pipelined(schedule) : schedule;
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
    return std::pair(of / size * size, size);  // NOLINT(clang-analyzer-core.DivideZero): size >= 1
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
