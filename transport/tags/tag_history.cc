#include "transport/tags/tag_history.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tarpon {

void Channel::remember(const PastOperation& one, std::size_t most) {
  if (past.size() < most) {
    past.push_back(one);
    return;
  }
  past[next_past] = one;
  next_past = (next_past + 1) % past.size();
}

const PastOperation* Channel::find_past(std::uint32_t number) const {
  const auto found = std::find_if(past.begin(), past.end(), [number](const PastOperation& one) {
    return one.number == number;
  });
  return found == past.end() ? nullptr : &*found;
}

bool Channel::ended_by_abort(std::uint32_t number) const {
  const PastOperation* const known = find_past(number);
  return known != nullptr ? known->aborted : find_aborted(number) != nullptr;
}

void Channel::remember_abort(std::uint32_t number, std::uint32_t reason, std::uint64_t ranks) {
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

const Channel::Aborted* Channel::find_aborted(std::uint32_t number) const {
  const auto found = std::find_if(aborted.rbegin(), aborted.rend(),
                                  [number](const Aborted& run) { return run.contains(number); });
  return found == aborted.rend() ? nullptr : &*found;
}

TagHistory::TagHistory(const Limits& limits) : limits_(limits), numbers_(limits.remembered_tags) {}

Channel* TagHistory::find(std::uint32_t tag) {
  if (last_found_ != nullptr && last_found_->tag == tag) return last_found_;
  const auto found = by_tag_.find(tag);
  return found == by_tag_.end() ? nullptr : last_found_ = found->second;
}

Channel& TagHistory::activate(std::uint32_t tag) {
  if (Channel* const channel = find(tag)) return *channel;
  if (idle_.empty()) idle_.push_back(std::make_unique<Channel>());
  Channel& channel = *idle_.back();
  const auto known = numbers_.find(tag);
  channel.tag = tag;
  channel.next_number = known.value_or(TagNumbers::Known{}).number;
  channel.lost = known.value_or(TagNumbers::Known{}).lost;
  channel.unproven = !known && has_forgotten();
  // Every peer had passed the operations that were made before.
  channel.closed_below_of.assign(limits_.world_size, channel.next_number);
  channel.early_aborts_of.assign(limits_.world_size, {channel.next_number, channel.next_number});
  channel.past.clear();
  channel.next_past = 0;
  channel.aborted.clear();
  channel.late_packets = 0;
  channel.untold = false;
  channel.wrapped = false;
  channel.position = active_.size();
  by_tag_[tag] = &channel;
  active_.push_back(std::move(idle_.back()));
  idle_.pop_back();
  numbers_.erase(tag);
  return *(last_found_ = &channel);
}

std::uint32_t TagHistory::next_number(std::uint32_t tag) {
  if (const Channel* const channel = find(tag)) return channel->next_number;
  return numbers_.find(tag).value_or(TagNumbers::Known{}).number;
}

bool TagHistory::is_lost(std::uint32_t tag) {
  if (const Channel* const channel = find(tag)) return channel->lost;
  return numbers_.find(tag).value_or(TagNumbers::Known{}).lost;
}

std::uint32_t TagHistory::lowest_open(std::uint32_t tag) {
  const Channel* const channel = find(tag);
  return channel == nullptr ? next_number(tag) : channel->lowest_open();
}

void TagHistory::forget(Channel& channel) {
  release(channel, channel.next_number);
  numbers_.put(channel.tag, {channel.next_number, channel.lost});
  by_tag_.erase(channel.tag);
  if (last_found_ == &channel) last_found_ = nullptr;
  const std::size_t position = channel.position;
  std::unique_ptr<Channel> gone = std::move(active_[position]);
  if (position + 1 < active_.size()) {
    active_[position] = std::move(active_.back());
    active_[position]->position = position;
  }
  active_.pop_back();
  if (idle_.size() < kIdleChannels) idle_.push_back(std::move(gone));
}

std::uint64_t TagHistory::memory_of(const Retained& result) {
  return kBytesPerResult + result.bytes.size() +
         result.contributors.size() * sizeof result.contributors[0];
}

void TagHistory::retain(Channel& channel, KeptResult kept) {
  retained_bytes_ += memory_of(*kept.data);
  ++retained_entries_;
  kept.order = results_++;
  // Operations of a tag may close out of order, by a few numbers.
  auto place = channel.kept.end();
  while (place != channel.kept.begin() && before(kept.number, std::prev(place)->number)) --place;
  channel.kept.insert(place, std::move(kept));
}

const KeptResult* TagHistory::find_kept(const Channel& channel, std::uint32_t number) const {
  const auto found = std::lower_bound(
      channel.kept.begin(), channel.kept.end(), number,
      [](const KeptResult& kept, std::uint32_t wanted) { return before(kept.number, wanted); });
  return found == channel.kept.end() || found->number != number ? nullptr : &*found;
}

void TagHistory::release(Channel& channel, std::uint32_t passed) {
  while (!channel.kept.empty() && before(channel.kept.front().number, passed)) {
    retained_bytes_ -= memory_of(*channel.kept.front().data);
    --retained_entries_;
    channel.kept.pop_front();
  }
}

void TagHistory::release(Channel& channel, std::uint32_t first, std::uint32_t end) {
  const auto from =
      std::find_if(channel.kept.begin(), channel.kept.end(),
                   [&](const KeptResult& kept) { return !before(kept.number, first); });
  auto to = from;
  for (; to != channel.kept.end() && before(to->number, end); ++to) {
    retained_bytes_ -= memory_of(*to->data);
    --retained_entries_;
  }
  channel.kept.erase(from, to);
}

bool TagHistory::may_retain(std::uint64_t bytes) const {
  if (retained_entries_ == 0) return true;
  return retained_entries_ < limits_.retain_entries && active_.size() < kActiveTags &&
         retained_bytes_ + kBytesPerResult + bytes <= limits_.retain_bytes;
}

}  // namespace tarpon
