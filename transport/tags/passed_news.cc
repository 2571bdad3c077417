#include "transport/tags/passed_news.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "transport/pair_tag.h"

namespace tarpon {
namespace {

constexpr std::size_t kMaxQuestions = 4;  // to a peer in a round

}  // namespace

std::uint32_t passed_by(const TagState& tag_state, Rank peer, const Participants& participants) {
  const std::uint32_t heard = tag_state.closed_below_of[peer];
  return participants.excludes(peer, tag_state.tag, heard) ? tag_state.next_number : heard;
}

PassedNews::PassedNews(Rank rank, std::uint32_t world_size, std::size_t max_entries,
                       TagHistory& tags, const Participants& participants)
    : rank_(rank),
      world_size_(world_size),
      max_entries_(max_entries),
      tags_(tags),
      participants_(participants),
      asked_up_to_(world_size) {}

void PassedNews::rose(TagState& tag_state, Time now) {
  if (!tag_state.untold) {
    tag_state.untold = true;
    untold_.push_back(tag_state.tag);
  }
  tell_at_ = std::min(tell_at_, untold_.size() >= max_entries_ ? now : now + kTellAfter);
  ask_at_ = std::min(ask_at_, now + kAskAfter);
}

Time PassedNews::next() const {
  return std::min(tell_at_, ask_at_);
}

void PassedNews::run(Time now, ControlQueue& control) {
  if (now >= tell_at_) tell(control);
  if (now >= ask_at_) ask(now, control);
}

void PassedNews::tell(ControlQueue& control) {
  tell_at_ = kNever;
  std::vector<NextNumber> numbers;
  const auto flush = [&] {
    for (Rank peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_) continue;
      std::vector<NextNumber> theirs;
      std::copy_if(numbers.begin(), numbers.end(), std::back_inserter(theirs),
                   [&](const NextNumber& one) { return (ranks_of_tag(one.tag) & bit(peer)) != 0; });
      if (theirs.empty()) continue;
      control.push(HeartbeatDue{peer, TARPON_HEARTBEAT_NEWS, std::move(theirs)});
    }
    numbers.clear();
  };
  for (const std::uint32_t tag : untold_) {
    TagState* const tag_state = tags_.find(tag);
    if (tag_state != nullptr) tag_state->untold = false;
    // Packets of an open operation say it.
    if (tag_state != nullptr && !tag_state->open.empty()) continue;
    numbers.push_back({tag, tags_.lowest_open(tag)});
    if (numbers.size() == max_entries_) flush();
  }
  flush();
  untold_.clear();
}

/// Asks peers about tags that they may have passed without this rank's knowledge.
void PassedNews::ask(Time now, ControlQueue& control) {
  ask_at_ = kNever;
  for (Rank peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ || participants_.is_dead(peer)) continue;
    const auto question = [&](std::vector<NextNumber> numbers) {
      control.push(HeartbeatDue{peer, TARPON_HEARTBEAT_QUESTION, std::move(numbers)});
    };
    // Each round begins behind the last tag of the one before: a peer may never pass some tags.
    const auto& active = tags_.active();
    std::size_t& from = asked_up_to_[peer];
    std::vector<NextNumber> numbers;
    std::size_t questions = 0, seen = 0;
    for (; seen < active.size() && questions < kMaxQuestions; ++seen) {
      const TagState& tag_state = *active[(from + seen) % active.size()];
      if (!tag_state.open.empty()) continue;
      if (!before(passed_by(tag_state, peer, participants_), tag_state.next_number)) continue;
      numbers.push_back({tag_state.tag, tag_state.next_number});
      if (numbers.size() < max_entries_) continue;
      question(std::exchange(numbers, {}));
      ++questions;
    }
    from += seen;
    if (numbers.empty() && questions == 0) continue;
    ask_at_ = now + kAskAfter;
    if (!numbers.empty()) question(std::move(numbers));
  }
}

}  // namespace tarpon
