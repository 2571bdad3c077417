#include "collectives/engine/hosts/host_calls.h"

#include <algorithm>

#include "transport/rank_mask.h"

namespace tarpon::hosts {
namespace {

// Sleep words: 0: awake; kAnything: ring for whatever is published; else a Wish, in this layout:
//   bits 0 to 21    steps
//   bits 22 to 53   number of the call on its line
//   bits 54, 55     part
//   bits 56 to 62   line
//   bit 63          1
constexpr std::uint64_t kAwake = 0;
constexpr std::uint64_t kAnything = 1;
constexpr std::uint64_t kIsWish = std::uint64_t{1} << 63;
constexpr std::uint32_t kMostSteps = (1u << 22) - 1;
static_assert(kLines <= 128);

std::uint64_t word_of(const Wish& wish) {
  const auto steps = static_cast<std::uint32_t>(wish.position);
  if (steps > kMostSteps) return kAnything;
  return kIsWish | std::uint64_t{wish.line} << 56 | static_cast<std::uint64_t>(wish.part) << 54 |
         (wish.position >> 32) << 22 | steps;
}

}  // namespace

void HostCalls::share(const HostGroup& group) {
  group_ = &group;
  lines_.reserve(kLines);
  // More than the window of a tag; and a common line has one call at a time.
  constexpr std::size_t kOwnOpen = 64, kCommonOpen = 1;
  for (std::uint32_t index = 0; index < kLines; ++index) {
    lines_.emplace_back(group, index, index < kOwnLines ? kOwnOpen : kCommonOpen);
  }
}

// -- lines ---------------------------------------------------------------------------------------

/// The local ranks that are not through with the latest call of a common line. A rank leaves the
/// parts of a call in order.
std::uint64_t HostCalls::lacking(std::uint32_t common) const {
  return group_->memory.lacking(kOwnLines + common, Part::copy_out, position(taken_[common], 0));
}

/// The call that has a common line, where this rank has not assigned it here yet. The lowest rank
/// has.
std::optional<CallName> HostCalls::binding(std::uint32_t common) const {
  const Binding& binding = group_->memory.binding(common);
  if (binding.count.load(std::memory_order_acquire) != taken_[common] + 1) return std::nullopt;
  const std::uint64_t word = binding.call.load(std::memory_order_relaxed);
  const CallName call{static_cast<std::uint32_t>(word >> 32), static_cast<std::uint32_t>(word)};
  if (own_line(call.tag)) return std::nullopt;  // garbage
  return call;
}

/// How many common lines have been used. The lowest rank goes by its own count: any process may
/// have written to the memory.
std::uint32_t HostCalls::used_lines() const {
  if (binds()) return used_;
  return std::min(kCommonLines, group_->memory.used_lines().load(std::memory_order_acquire));
}

/// The common line that the call has, or that this rank can give it. A binding stays as it is until
/// this rank has left the line.
std::optional<std::uint32_t> HostCalls::find_line(const CallName& call) const {
  const std::uint32_t used = used_lines();
  for (std::uint32_t common = 0; common < used; ++common) {
    if (binds() ? lacking(common) == 0 : binding(common) == call) return common;
  }
  if (binds() && used < kCommonLines) return used;
  return std::nullopt;
}

std::optional<Assignment> HostCalls::assign(const CallName& call) {
  if (const auto own = own_line(call.tag)) return Assignment{&lines_[*own], call.number};
  const std::optional<std::uint32_t> common = find_line(call);
  if (!common) return std::nullopt;
  const std::uint32_t number = taken_[*common]++;
  if (binds()) {
    Binding& binding = group_->memory.binding(*common);
    binding.call.store(std::uint64_t{call.tag} << 32 | call.number, std::memory_order_relaxed);
    binding.count.store(number + 1, std::memory_order_release);
    used_ = std::max(used_, *common + 1);
    group_->memory.used_lines().store(used_, std::memory_order_release);
  }
  return Assignment{&lines_[kOwnLines + *common], number};
}

std::uint64_t HostCalls::lacked_for_a_line() const {
  const bool all_used = used_lines() == kCommonLines;
  std::uint64_t ranks = 0;
  for (const HostWork* const work : open_) {
    if (all_used && work->has_line()) ranks |= work->lacks();
  }
  const Rank lowest = group_->ranks()[0];
  return ranks == 0 && !binds() ? bit(lowest) : ranks;
}

/// Returns false where the call has no line yet.
bool HostCalls::tell(const Passed& one) {
  const std::optional<Assignment> assigned = assign(one.call);
  if (!assigned) return false;
  assigned->line->pass_over(assigned->number, one.ending);
  ring(true);
  return true;
}

void HostCalls::pass_over(const CallName& call, const HostLine::Ending& ending) {
  const Passed one{call, ending};
  if (tell(one)) return;
  if (passed_.size() == kMostPassed) passed_.pop_front();
  passed_.push_back(one);
}

void HostCalls::tell_passed(const std::function<bool(const CallName&)>& begun) {
  if (!shares()) return;
  if (binds()) {
    while (!passed_.empty() && tell(passed_.front())) passed_.pop_front();
    return;
  }
  std::erase_if(passed_, [this](const Passed& one) { return tell(one); });
  for (std::uint32_t common = 0; common < used_lines(); ++common) {
    const std::optional<CallName> call = binding(common);
    if (!call || !begun(*call)) continue;
    const bool is_open = std::any_of(open_.begin(), open_.end(),
                                     [&](const HostWork* work) { return work->name() == *call; });
    if (!is_open) tell({*call, {.state = CallState::over}});
  }
}

// -- work ----------------------------------------------------------------------------------------

std::uint64_t HostCalls::lacked_by(const CallName& call) const {
  const auto work = std::find_if(open_.begin(), open_.end(),
                                 [&](const HostWork* one) { return one->name() == call; });
  return work == open_.end() ? 0 : (*work)->lacks();
}

bool HostCalls::has_come_true(std::uint64_t word) const {
  if ((word & kIsWish) == 0) return word != kAwake;
  const auto line = static_cast<std::uint32_t>(word >> 56 & 127);
  const auto part = static_cast<std::size_t>(word >> 54 & 3);
  if (line >= kLines || part >= kParts) return true;  // garbage: let it look
  const Position wanted = position(static_cast<std::uint32_t>(word >> 22),
                                   static_cast<std::uint32_t>(word) & kMostSteps);
  return group_->memory.lacking(line, static_cast<Part>(part), wanted) == 0;
}

void HostCalls::ring(bool all) {
  moved_ = true;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::uint32_t rank = 0; rank < group_->memory.shape().ranks; ++rank) {
    if (rank == group_->self) continue;
    std::atomic<std::uint64_t>& sleeper = group_->memory.sleep_word(rank);
    const std::uint64_t word = sleeper.load(std::memory_order_relaxed);
    if (word == kAwake || (!all && !has_come_true(word))) continue;
    if (sleeper.exchange(kAwake) != kAwake) group_->bells->ring(rank);
  }
}

void HostCalls::move(Time now) {
  for (HostWork* const work : open_) work->move(now);
}

bool HostCalls::can_move() const {
  return std::any_of(open_.begin(), open_.end(),
                     [](const HostWork* work) { return work->can_move(); }) ||
         std::any_of(passed_.begin(), passed_.end(),
                     [this](const Passed& one) { return can_assign(one.call); });
}

bool HostCalls::fall_asleep() {
  if (!waits()) return true;
  std::optional<Wish> wish;
  if (open_.size() == 1 && passed_.empty()) wish = open_.front()->wish();
  std::atomic<std::uint64_t>& own = group_->memory.sleep_word(group_->self);
  own.store(wish ? word_of(*wish) : kAnything);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool moves = can_move();
  if (moves) own.store(kAwake);
  return !moves;
}

void HostCalls::wake() {
  if (waits()) group_->memory.sleep_word(group_->self).store(kAwake);
}

}  // namespace tarpon::hosts
