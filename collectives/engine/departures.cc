#include "collectives/engine/departures.h"

#include <utility>

#include "transport/pair_tag.h"
#include "transport/rank_mask.h"

namespace tarpon {

void Departures::left(Rank rank, const std::vector<NextNumber>& next_numbers) {
  Leaving one{rank, next_numbers};
  std::erase_if(one.next_numbers, [this](const NextNumber& next) {
    return (ranks_of_tag(next.tag) & bit(self_)) == 0;
  });
  leaving_.push_back(std::move(one));
}

void Departures::gone(Rank rank) {
  std::erase_if(leaving_, [rank](const Leaving& one) { return one.rank == rank; });
}

std::uint64_t Departures::take_passed(const Endpoint& endpoint) {
  std::uint64_t ranks = 0;
  std::erase_if(leaving_, [&](Leaving& one) {
    std::erase_if(one.next_numbers, [&](const NextNumber& next) {
      return static_cast<std::int32_t>(endpoint.tags().lowest_open(next.tag) - next.number) >= 0;
    });
    if (!one.next_numbers.empty()) return false;
    ranks |= bit(one.rank);
    return true;
  });
  return ranks;
}

std::uint64_t Departures::take_all() {
  std::uint64_t ranks = 0;
  for (const Leaving& one : leaving_) ranks |= bit(one.rank);
  leaving_.clear();
  return ranks;
}

}  // namespace tarpon
