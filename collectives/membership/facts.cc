#include "collectives/membership/facts.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

/// How high a row stands: a rank that left is higher once it no longer serves.
int height(const Fact& fact) {
  const int base = 2 * static_cast<int>(fact.standing);
  return fact.standing == Standing::left && !fact.serves ? base + 1 : base;
}

}  // namespace

std::string_view name(Standing standing) {
  switch (standing) {
    case Standing::live:
      return "live";
    case Standing::left:
      return "left";
    case Standing::evicted:
      return "evicted";
    case Standing::dead:
      return "dead";
  }
  return "?";
}

std::string Fact::text() const {
  if (standing == Standing::left) return fmt::format("rank {} left the communicator", rank);
  std::string line = fmt::format("rank {} is {}", rank, name(standing));
  if (!evidence.empty()) line += ": " + evidence;
  if (without_majority) line += " (without majority)";
  return line;
}

Facts::Facts(std::uint32_t world_size) : rows_(world_size) {
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    rows_[rank].rank = static_cast<Rank>(rank);
}

bool Facts::learn(const Fact& fact) {
  if (fact.rank >= rows_.size()) return false;
  Fact& row = rows_[fact.rank];
  if (height(fact) <= height(row)) return false;
  row = fact;
  if (row.standing != Standing::left || !row.serves) {
    row.serves = false;
    row.next_numbers.clear();
  }
  return true;
}

std::uint64_t Facts::ranks(Standing standing) const {
  std::uint64_t mask = 0;
  for (const Fact& row : rows_) {
    if (row.standing == standing) mask |= bit(row.rank);
  }
  return mask;
}

std::uint64_t Facts::can_rejoin() const {
  return ranks(Standing::live) | ranks(Standing::evicted);
}

Rank Facts::decider() const {
  const std::uint64_t candidates = live();
  if (candidates == 0) return static_cast<Rank>(rows_.size());
  return static_cast<Rank>(std::countr_zero(candidates));
}

std::string Facts::text(std::uint64_t ranks) const {
  std::string result;
  for (const Fact& row : rows_) {
    if (row.standing == Standing::live || (ranks >> row.rank & 1) == 0) continue;
    result += (result.empty() ? "" : "; ") + row.text();
  }
  return result;
}

}  // namespace tarpon
