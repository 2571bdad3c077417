#include "transport/tags/tag_history.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tarpon {

void TagState::remember(const PastOperation& one, std::size_t most) {
  if (past.size() < most) {
    past.push_back(one);
    return;
  }
  past[next_past] = one;
  next_past = (next_past + 1) % past.size();
}

const PastOperation* TagState::find_past(std::uint32_t number) const {
  const auto found = std::find_if(past.begin(), past.end(), [number](const PastOperation& one) {
    return one.number == number;
  });
  return found == past.end() ? nullptr : &*found;
}

bool TagState::ended_by_abort(std::uint32_t number) const {
  const PastOperation* const known = find_past(number);
  return known != nullptr ? known->aborted : find_aborted(number) != nullptr;
}

void TagState::remember_abort(std::uint32_t number, std::uint32_t reason, std::uint64_t ranks) {
  const bool goes_on = !aborted.empty() && aborted.back().end == number &&
                       aborted.back().reason == reason && aborted.back().ranks == ranks;
  if (goes_on) {
    aborted.back().end = number + 1;
    return;
  }
  if (aborted.size() == kAbortedRuns) {
    if (aborted[0].end == aborted[1].first)
      aborted[1] = {{aborted[0].first, aborted[1].end}, aborted[0].reason, aborted[0].ranks};
    aborted.erase(aborted.begin());
  }
  aborted.push_back({{number, number + 1}, reason, ranks});
}

const TagState::Aborted* TagState::find_aborted(std::uint32_t number) const {
  const auto found = std::find_if(aborted.rbegin(), aborted.rend(),
                                  [number](const Aborted& run) { return run.contains(number); });
  return found == aborted.rend() ? nullptr : &*found;
}

TagHistory::TagHistory(const Limits& limits)
    : limits_(limits),
      numbers_(limits.remembered_tags, limits.kept_tags),
      pair_numbers_(limits.remembered_tags) {}

TagState* TagHistory::find(std::uint32_t tag) {
  if (last_found_ != nullptr && last_found_->tag == tag) return last_found_;
  const auto found = by_tag_.find(tag);
  return found == by_tag_.end() ? nullptr : last_found_ = found->second;
}

TagState& TagHistory::activate(std::uint32_t tag) {
  if (TagState* const tag_state = find(tag)) return *tag_state;
  if (idle_.empty()) idle_.push_back(std::make_unique<TagState>());
  TagState& tag_state = *idle_.back();
  const auto known = numbers_of(tag).find(tag);
  tag_state.tag = tag;
  tag_state.next_number = known.value_or(TagNumbers::Known{}).number;
  tag_state.lost = known.value_or(TagNumbers::Known{}).lost;
  tag_state.unproven = !known && has_forgotten();
  // Every peer had passed the operations that were made before.
  tag_state.closed_below_of.assign(limits_.world_size, tag_state.next_number);
  tag_state.early_aborts_of.assign(limits_.world_size,
                                   {tag_state.next_number, tag_state.next_number});
  tag_state.past.clear();
  tag_state.next_past = 0;
  tag_state.aborted.clear();
  tag_state.late_packets = 0;
  tag_state.untold = false;
  tag_state.wrapped = false;
  tag_state.position = active_.size();
  by_tag_[tag] = &tag_state;
  active_.push_back(std::move(idle_.back()));
  idle_.pop_back();
  numbers_of(tag).erase(tag);
  return *(last_found_ = &tag_state);
}

std::uint32_t TagHistory::next_number(std::uint32_t tag) {
  if (const TagState* const tag_state = find(tag)) return tag_state->next_number;
  return numbers_of(tag).find(tag).value_or(TagNumbers::Known{}).number;
}

bool TagHistory::is_lost(std::uint32_t tag) {
  if (const TagState* const tag_state = find(tag)) return tag_state->lost;
  return numbers_of(tag).find(tag).value_or(TagNumbers::Known{}).lost;
}

std::uint32_t TagHistory::lowest_open(std::uint32_t tag) {
  const TagState* const tag_state = find(tag);
  return tag_state == nullptr ? next_number(tag) : tag_state->lowest_open();
}

void TagHistory::forget(TagState& tag_state) {
  release(tag_state, tag_state.next_number);
  numbers_of(tag_state.tag).put(tag_state.tag, {tag_state.next_number, tag_state.lost});
  by_tag_.erase(tag_state.tag);
  if (last_found_ == &tag_state) last_found_ = nullptr;
  const std::size_t position = tag_state.position;
  std::unique_ptr<TagState> gone = std::move(active_[position]);
  if (position + 1 < active_.size()) {
    active_[position] = std::move(active_.back());
    active_[position]->position = position;
  }
  active_.pop_back();
  if (idle_.size() < kIdleStates) idle_.push_back(std::move(gone));
}

std::uint64_t TagHistory::memory_of(const Retained& result) {
  return kBytesPerResult + result.bytes.size() +
         result.contributors.size() * sizeof result.contributors[0];
}

void TagHistory::retain(TagState& tag_state, KeptResult kept) {
  retained_bytes_ += memory_of(*kept.data);
  ++retained_entries_;
  tag_state.kept_for_some += kept.data->receivers == kAllReceivers ? 0 : 1;
  kept.order = results_++;
  // Operations of a tag may close out of order, by a few numbers.
  auto place = tag_state.kept.end();
  while (place != tag_state.kept.begin() && before(kept.number, std::prev(place)->number)) --place;
  tag_state.kept.insert(place, std::move(kept));
}

const KeptResult* TagHistory::find_kept(const TagState& tag_state, std::uint32_t number) const {
  const auto found = std::lower_bound(
      tag_state.kept.begin(), tag_state.kept.end(), number,
      [](const KeptResult& kept, std::uint32_t wanted) { return before(kept.number, wanted); });
  return found == tag_state.kept.end() || found->number != number ? nullptr : &*found;
}

void TagHistory::note_released(TagState& tag_state, const KeptResult& kept) {
  retained_bytes_ -= memory_of(*kept.data);
  --retained_entries_;
  tag_state.kept_for_some -= kept.data->receivers == kAllReceivers ? 0 : 1;
}

void TagHistory::release(TagState& tag_state, std::uint32_t passed) {
  while (!tag_state.kept.empty() && before(tag_state.kept.front().number, passed)) {
    note_released(tag_state, tag_state.kept.front());
    tag_state.kept.pop_front();
  }
}

void TagHistory::release(TagState& tag_state, std::uint32_t first, std::uint32_t end) {
  const auto from =
      std::find_if(tag_state.kept.begin(), tag_state.kept.end(),
                   [&](const KeptResult& kept) { return !before(kept.number, first); });
  auto to = from;
  for (; to != tag_state.kept.end() && before(to->number, end); ++to) {
    note_released(tag_state, *to);
  }
  tag_state.kept.erase(from, to);
}

bool TagHistory::may_retain(std::uint64_t bytes) const {
  if (retained_entries_ == 0) return true;
  return retained_entries_ < limits_.retain_entries && active_.size() < kActiveTags &&
         retained_bytes_ + kBytesPerResult + bytes <= limits_.retain_bytes;
}

}  // namespace tarpon
