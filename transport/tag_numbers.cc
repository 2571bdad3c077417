#include "transport/tag_numbers.h"

#include <algorithm>

namespace tarpon {
namespace {

constexpr std::size_t kFewestPlaces = 64;

}  // namespace

/// Where the search for `tag` begins. Fibonacci hashing: tags are often consecutive.
std::size_t TagNumbers::home(std::uint32_t tag) const {
  const std::uint64_t mixed = tag * std::uint64_t{0x9e3779b97f4a7c15};
  return static_cast<std::size_t>(mixed >> 32) & (places_.size() - 1);
}

/// The place of `tag`, or the empty place where it would be. REQUIRES: places.
std::size_t TagNumbers::place_of(std::uint32_t tag) const {
  std::size_t place = home(tag);
  while (places_[place] != kNone && entries_[places_[place]].tag != tag) place = next(place);
  return place;
}

std::optional<TagNumbers::Known> TagNumbers::find(std::uint32_t tag) const {
  if (size_ == 0) return std::nullopt;
  const std::uint32_t found = places_[place_of(tag)];
  if (found == kNone) return std::nullopt;
  return entries_[found].known;
}

void TagNumbers::put(std::uint32_t tag, Known known) {
  erase(tag);
  has_forgotten_ |= size_ == limit_;
  if (limit_ == 0) return;
  if (size_ == limit_) remove(place_of(entries_[oldest_to_remove()].tag));
  if (2 * (size_ + 1) > places_.size()) grow();
  std::uint32_t index = free_;
  if (index == kNone) {
    index = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    free_ = entries_[index].newer;
  }
  entries_[index] = {.tag = tag, .known = known, .older = newest_, .newer = kNone};
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = index;
  newest_ = index;
  places_[place_of(tag)] = index;
  ++size_;
}

std::uint32_t TagNumbers::oldest_to_remove() const {
  std::uint32_t at = oldest_;
  while (at != kNone && std::find(kept_.begin(), kept_.end(), entries_[at].tag) != kept_.end()) {
    at = entries_[at].newer;
  }
  return at == kNone ? oldest_ : at;
}

void TagNumbers::erase(std::uint32_t tag) {
  if (size_ == 0) return;
  const std::size_t place = place_of(tag);
  if (places_[place] != kNone) remove(place);
}

std::vector<std::uint32_t> TagNumbers::newest(std::size_t most) const {
  std::vector<std::uint32_t> tags;
  for (std::uint32_t at = newest_; at != kNone && tags.size() < most; at = entries_[at].older) {
    tags.push_back(entries_[at].tag);
  }
  return tags;
}

void TagNumbers::grow() {
  places_.assign(std::max(kFewestPlaces, 2 * places_.size()), kNone);
  for (std::uint32_t index = oldest_; index != kNone; index = entries_[index].newer) {
    places_[place_of(entries_[index].tag)] = index;
  }
}

void TagNumbers::unlink(const Entry& entry) {
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
}

/// Frees the entry at `place`, and moves up entries that were put after it because their own place
/// was taken.
void TagNumbers::remove(std::size_t place) {
  const std::uint32_t index = places_[place];
  unlink(entries_[index]);
  entries_[index].newer = free_;
  free_ = index;
  --size_;
  const std::size_t mask = places_.size() - 1;
  std::size_t hole = place;
  for (std::size_t at = next(place); places_[at] != kNone; at = next(at)) {
    const std::size_t wanted = home(entries_[places_[at]].tag);
    // An entry may not come before its home.
    if (((at - wanted) & mask) < ((at - hole) & mask)) continue;
    places_[hole] = places_[at];
    hole = at;
  }
  places_[hole] = kNone;
}

}  // namespace tarpon
