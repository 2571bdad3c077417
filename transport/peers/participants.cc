#include "transport/peers/participants.h"

#include <algorithm>
#include <utility>

#include "transport/pair_tag.h"
#include "transport/wire/operation_number.h"

namespace tarpon {

void Participants::set_dead(Rank rank) {
  dead_ |= bit(rank);
  silent_ &= ~bit(rank);
  left_[rank].reset();
}

void Participants::set_left(Rank rank, std::vector<NextNumber> made) {
  std::sort(made.begin(), made.end(),
            [](const NextNumber& a, const NextNumber& b) { return a.tag < b.tag; });
  left_[rank] = std::move(made);
}

bool Participants::set_silent(Rank rank, bool silent) {
  if (is_dead(rank) || is_silent(rank) == silent) return false;
  silent_ ^= bit(rank);
  return true;
}

const NextNumber* Participants::find(Rank rank, std::uint32_t tag) const {
  const std::vector<NextNumber>& list = *left_[rank];
  const auto found = std::lower_bound(
      list.begin(), list.end(), tag,
      [](const NextNumber& one, std::uint32_t wanted) { return one.tag < wanted; });
  return found == list.end() || found->tag != tag ? nullptr : &*found;
}

bool Participants::excludes(Rank rank, std::uint32_t tag, std::uint32_t number) const {
  if (is_dead(rank) || (ranks_of_tag(tag) & bit(rank)) == 0) return true;
  if (!has_left(rank)) return false;
  const NextNumber* const made = find(rank, tag);
  return made == nullptr || !before(number, made->number);
}

std::uint32_t Participants::made(Rank rank, std::uint32_t tag) const {
  return find(rank, tag)->number;
}

std::uint32_t Participants::live_in(std::uint32_t tag, std::uint32_t number) const {
  const std::uint64_t ranks = first_ranks(world_size_) & ranks_of_tag(tag);
  std::uint32_t count = 0;
  for (const Rank rank : ranks_of(ranks & ~(dead_ | silent_ | rejoining_))) {
    if (!has_left(rank) || !excludes(rank, tag, number)) ++count;
  }
  return count;
}

}  // namespace tarpon
