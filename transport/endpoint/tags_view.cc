#include "transport/tags_view.h"

#include <algorithm>

#include "transport/peers/participants.h"
#include "transport/tags/early_operations.h"
#include "transport/tags/passed_news.h"
#include "transport/tags/tag_history.h"

namespace tarpon {
namespace {

constexpr std::size_t kRecentTags = 1024;

}  // namespace

bool TagsView::can_submit(std::uint32_t tag) const {
  const TagState* tag_state = parts_.tags.find(tag);
  if (tag_state == nullptr) return true;
  const std::uint32_t window = tag_state->unproven ? 1 : parts_.options.window;
  return tag_state->next_number - tag_state->lowest_open() < window;
}

std::uint32_t TagsView::next_number(std::uint32_t tag) const {
  return parts_.tags.next_number(tag);
}

std::uint32_t TagsView::lowest_open(std::uint32_t tag) const {
  return parts_.tags.lowest_open(tag);
}

bool TagsView::is_lost(std::uint32_t tag) const {
  return parts_.tags.is_lost(tag);
}

std::uint32_t TagsView::furthest(std::uint32_t tag) const {
  const TagState* tag_state = parts_.tags.find(tag);
  if (tag_state == nullptr) return 0;
  std::uint32_t result = tag_state->lowest_open();
  for (Rank peer = 0; peer < parts_.options.world_size; ++peer) {
    const std::uint32_t theirs = tag_state->closed_below_of[peer];
    if (peer != parts_.options.rank && before(result, theirs)) result = theirs;
  }
  return result;
}

std::uint32_t TagsView::ended_elsewhere(std::uint32_t tag, std::uint32_t number) const {
  const TagState* tag_state = parts_.tags.find(tag);
  std::uint32_t most = 0;
  for (Rank peer = 0; tag_state != nullptr && peer < parts_.options.world_size; ++peer) {
    if (peer == parts_.options.rank || !parts_.early.has_ended(*tag_state, peer, number)) continue;
    most = std::max(most, tag_state->closed_below_of[peer] - number);
  }
  return most;
}

std::vector<std::uint32_t> TagsView::all() const {
  std::vector<std::uint32_t> result;
  for (const auto& tag_state : parts_.tags.active()) result.push_back(tag_state->tag);
  for (const std::uint32_t tag : parts_.tags.recent(kRecentTags)) result.push_back(tag);
  return result;
}

std::vector<std::uint32_t> TagsView::begun_by_peers(std::uint32_t first) const {
  std::vector<std::uint32_t> result;
  for (const NextNumber& early : parts_.early.packets().of_tags_from(first)) {
    if (early.number == next_number(early.tag)) result.push_back(early.tag);
  }
  return result;
}

std::vector<NextNumber> TagsView::unpassed() const {
  std::vector<NextNumber> result;
  for (const auto& tag_state : parts_.tags.active()) {
    bool passed = tag_state->open.empty();
    for (Rank peer = 0; peer < parts_.options.world_size && passed; ++peer) {
      if (peer == parts_.options.rank) continue;
      passed = !before(passed_by(*tag_state, peer, parts_.participants), tag_state->next_number);
    }
    if (!passed) result.push_back({tag_state->tag, tag_state->next_number});
  }
  return result;
}

bool TagsView::may_retain(std::uint64_t bytes) const {
  return parts_.tags.may_retain(bytes);
}

std::uint64_t TagsView::holding_back() const {
  const TagState* oldest = nullptr;
  for (const auto& tag_state : parts_.tags.active()) {
    if (tag_state->kept.empty()) continue;
    if (oldest == nullptr || tag_state->kept.front().order < oldest->kept.front().order) {
      oldest = tag_state.get();
    }
  }
  std::uint64_t ranks = 0;
  for (Rank peer = 0; peer < parts_.options.world_size && oldest != nullptr; ++peer) {
    if (peer == parts_.options.rank) continue;
    const std::uint32_t passed = passed_by(*oldest, peer, parts_.participants);
    if (!before(oldest->kept.front().number, passed)) ranks |= 1ull << peer;
  }
  return ranks;
}

}  // namespace tarpon
