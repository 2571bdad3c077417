#include "tools/scale/step_schedule.h"

#include <bit>

namespace tarpon::scale {
namespace {

Step ring_step(std::uint32_t ranks, std::uint64_t bytes, Rank rank, std::uint32_t step) {
  // Chunk rank-k leaves in step k of the first half, chunk rank+1-k in step k of the second.
  const std::uint32_t k = step % (ranks - 1);
  const std::uint32_t shift = step < ranks - 1 ? 0 : 1;
  const auto from = static_cast<Rank>((rank + ranks - 1) % ranks);
  return {.to = static_cast<Rank>((rank + 1) % ranks),
          .send_bytes = shard_bytes(bytes, ranks, (rank + shift + ranks - k) % ranks),
          .from = from,
          .receive_bytes = shard_bytes(bytes, ranks, (from + shift + ranks - k) % ranks)};
}

Step tar_step(std::uint32_t ranks, std::uint64_t bytes, Rank rank, std::uint32_t step) {
  const std::uint32_t k = step % (ranks - 1);
  const bool gather = step >= ranks - 1;
  const auto to = static_cast<Rank>((rank + ranks - 1 - k) % ranks);
  const auto from = static_cast<Rank>((rank + 1 + k) % ranks);
  return {.to = to,
          .send_bytes = shard_bytes(bytes, ranks, gather ? rank : to),
          .from = from,
          .receive_bytes = shard_bytes(bytes, ranks, gather ? from : rank)};
}

Step halving_doubling_step(std::uint32_t ranks, std::uint64_t bytes, Rank rank,
                           std::uint32_t step) {
  const std::uint32_t power = std::bit_floor(ranks);
  const std::uint32_t folds = ranks > power ? 1 : 0;
  const auto doublings = static_cast<std::uint32_t>(std::countr_zero(power));
  const bool first = folds == 1 && step == 0;
  if (first || step == 2 * doublings + folds) {
    const bool surplus = rank >= power;
    if (!surplus && rank + power >= ranks) return {};
    const auto partner = static_cast<Rank>(surplus ? rank - power : rank + power);
    if (surplus == first) return {.to = partner, .send_bytes = bytes};
    return {.from = partner, .receive_bytes = bytes};
  }
  if (rank >= power) return {};
  const std::uint32_t k = step - folds;
  const std::uint32_t level = k < doublings ? k + 1 : 2 * doublings - k;
  const auto partner = static_cast<Rank>(rank ^ (power >> level));
  return {partner, bytes >> level, partner, bytes >> level};
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::ring:
      return "ring";
    case Algorithm::halving_doubling:
      return "halving-doubling";
    case Algorithm::tar:
      return "tar";
    case Algorithm::bounded:
      return "bounded";
  }
  return "";
}

std::optional<Algorithm> algorithm_named(std::string_view name) {
  for (const Algorithm algorithm : kAlgorithms) {
    if (name_of(algorithm) == name) return algorithm;
  }
  return std::nullopt;
}

std::uint64_t shard_bytes(std::uint64_t bytes, std::uint32_t ranks, std::uint32_t shard) {
  return bytes / ranks + (shard < bytes % ranks ? 1 : 0);
}

std::uint32_t step_count(Algorithm algorithm, std::uint32_t ranks) {
  if (algorithm != Algorithm::halving_doubling) return 2 * (ranks - 1);
  const std::uint32_t power = std::bit_floor(ranks);
  const auto doublings = static_cast<std::uint32_t>(std::countr_zero(power));
  return 2 * doublings + (ranks > power ? 2 : 0);
}

Step step_of(Algorithm algorithm, std::uint32_t ranks, std::uint64_t bytes, Rank rank,
             std::uint32_t step) {
  switch (algorithm) {
    case Algorithm::ring:
      return ring_step(ranks, bytes, rank, step);
    case Algorithm::halving_doubling:
      return halving_doubling_step(ranks, bytes, rank, step);
    case Algorithm::tar:
    case Algorithm::bounded:
      return tar_step(ranks, bytes, rank, step);
  }
  return {};
}

}  // namespace tarpon::scale
