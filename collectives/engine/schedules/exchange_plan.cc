#include "collectives/engine/schedules/exchange_plan.h"

#include <algorithm>

namespace tarpon {
namespace {

/// Areas begin at multiples of kShardAlignment, so that no two of them share a cache line.
std::uint64_t piece_elements(std::uint64_t place_bytes, std::uint64_t areas,
                             std::size_t element_bytes) {
  const std::uint64_t units = std::max<std::uint64_t>(1, place_bytes / areas / kShardAlignment);
  return units * kShardAlignment / element_bytes;
}

}  // namespace

ExchangePlan::ExchangePlan(const CollectiveParts& parts, std::uint32_t world,
                           std::size_t element_bytes, std::uint64_t place_bytes)
    : parts_(parts),
      element_bytes_(element_bytes),
      piece_(piece_elements(place_bytes, shares() ? 1 : world, element_bytes)),
      steps_(static_cast<std::uint32_t>(
          std::max<std::uint64_t>(1, (longest() + piece_ - 1) / piece_))) {}

bool ExchangePlan::shares() const {
  return parts_.collective == Collective::all_gather ||
         parts_.collective == Collective::broadcast || parts_.collective == Collective::gather ||
         parts_.collective == Collective::reduce;
}

bool ExchangePlan::passes(Rank from, Rank to) const {
  switch (parts_.collective) {
    case Collective::broadcast:
    case Collective::scatter:
      return from == parts_.root;
    case Collective::reduce:
    case Collective::gather:
      return to == parts_.root;
    case Collective::allreduce:
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::send:
    case Collective::receive:
      break;
  }
  return true;
}

Range ExchangePlan::source(Rank from, Rank to) const {
  if (parts_.parts.empty()) return {0, parts_.count};
  return parts_.parts[shares() ? from : to];
}

Range ExchangePlan::target(Rank from, Rank to) const {
  return parts_.collective == Collective::all_to_all ? parts_.parts[from] : source(from, to);
}

Range ExchangePlan::piece(Range all, std::uint32_t step) const {
  const std::uint64_t first = std::min(all.count, step * piece_);
  return {all.first + first, std::min(piece_, all.count - first)};
}

std::uint64_t ExchangePlan::reached(const Range& all, std::uint32_t steps) const {
  return std::min(all.count, steps * piece_);
}

std::uint64_t ExchangePlan::longest() const {
  if (parts_.parts.empty()) return parts_.count;
  const auto longest =
      std::max_element(parts_.parts.begin(), parts_.parts.end(),
                       [](const Range& a, const Range& b) { return a.count < b.count; });
  return longest->count;
}

}  // namespace tarpon
