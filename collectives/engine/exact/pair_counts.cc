#include "collectives/engine/exact/pair_counts.h"

#include <fmt/format.h>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

// The third word. A READY that leaves after its operation was closed has no terms: all words are 0.
constexpr std::uint32_t kTold = 1;

/// A count modulo 2^32 - 1. Small counts are themselves.
std::uint32_t folded(std::uint64_t count) {
  return static_cast<std::uint32_t>(count % 0xffffffff);
}

}  // namespace

PairCounts::PairCounts(const CollectiveParts& parts, Rank rank)
    : parts_(parts),
      unknown_(first_ranks(static_cast<std::uint32_t>(parts.parts.size())) & ~bit(rank)) {}

std::vector<CallTerms> PairCounts::terms() const {
  std::vector<CallTerms> terms;
  terms.reserve(parts_.parts.size());
  for (std::size_t rank = 0; rank < parts_.parts.size(); ++rank) {
    terms.push_back({folded(parts_.sent[rank].count), folded(parts_.parts[rank].count), kTold});
  }
  return terms;
}

std::optional<PairCounts::Difference> PairCounts::find(const OperationView& operation) {
  for (const Rank peer : ranks_of(unknown_)) {
    const std::optional<CallTerms> theirs = operation.terms(peer);
    if (!theirs || (*theirs)[2] != kTold) continue;
    unknown_ &= ~bit(peer);
    const std::uint64_t sent = parts_.sent[peer].count, taken = parts_.parts[peer].count;
    if ((*theirs)[0] != folded(taken)) {
      return Difference{peer,
                        fmt::format("rank {} differs: it sends {} elements to this rank, which "
                                    "takes {}",
                                    peer, (*theirs)[0], taken)};
    }
    if ((*theirs)[1] != folded(sent)) {
      return Difference{peer, fmt::format("rank {} differs: it takes {} elements from this rank, "
                                          "which sends {}",
                                          peer, (*theirs)[1], sent)};
    }
  }
  return std::nullopt;
}

}  // namespace tarpon
