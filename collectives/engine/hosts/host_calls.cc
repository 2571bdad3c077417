#include "collectives/engine/hosts/host_calls.h"

#include <algorithm>
#include <cstring>

namespace tarpon::hosts {
namespace {

constexpr std::array<Part, kParts> kAllParts{Part::copy_in, Part::add_up, Part::spread,
                                             Part::copy_out};

// Sleep words: 0: awake; kAnything: ring for whatever is published; else a Wish, in this layout:
//   bits 0 to 23    steps
//   bits 24 to 55   number of the call
//   bits 56, 57     part
//   bits 58 to 62   index of the tag
//   bit 63          1
constexpr std::uint64_t kAwake = 0;
constexpr std::uint64_t kAnything = 1;
constexpr std::uint64_t kIsWish = std::uint64_t{1} << 63;
constexpr std::uint32_t kMostSteps = (1u << 24) - 1;
static_assert(kHostTagsInAll <= 32);

std::uint64_t word_of(const Wish& wish) {
  const auto steps = static_cast<std::uint32_t>(wish.position);
  if (steps > kMostSteps) return kAnything;
  return kIsWish | std::uint64_t{wish.tag} << 58 | static_cast<std::uint64_t>(wish.part) << 56 |
         (wish.position >> 32) << 24 | steps;
}

constexpr std::uint64_t state_word(std::uint32_t number, CallState state) {
  return std::uint64_t{number} << 32 | static_cast<std::uint32_t>(state);
}

std::size_t index_of(Part part) {
  return static_cast<std::size_t>(part);
}

}  // namespace

HostTag::HostTag(const HostGroup& group, std::uint32_t index) : group_(group), index_(index) {
  for (auto& used : used_) used.resize(group.memory.shape().places);
  constexpr std::size_t kMostOpen = 64;  // more than a tag may have: begin() allocates nothing
  for (auto& waiting : waiting_) waiting.reserve(kMostOpen);
}

void HostTag::begin(std::uint32_t number, const SignatureBytes& signature,
                    std::span<const Part> parts) {
  CallBoard& call = own().calls[number % Board::kCalls];
  for (std::size_t i = 0; i < call.signature.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, signature.data() + i * sizeof word, sizeof word);
    call.signature[i].store(word, std::memory_order_relaxed);
  }
  call.state.store(state_word(number, CallState::begun), std::memory_order_release);
  reach(number);
  for (const Part part : parts) waiting_[index_of(part)].push_back(number);
  next_number_ = number + 1;
}

bool HostTag::is_turn(Part part, std::uint32_t number) const {
  const auto& waiting = waiting_[index_of(part)];
  return !waiting.empty() && waiting.front() == number;
}

void HostTag::publish(Part part, std::uint32_t number, std::uint32_t steps) {
  own().done[index_of(part)].store(position(number, steps), std::memory_order_release);
}

void HostTag::leave(Part part, std::uint32_t number) {
  auto& waiting = waiting_[index_of(part)];
  const auto place = std::find(waiting.begin(), waiting.end(), number);
  if (place == waiting.end()) return;
  const bool first = place == waiting.begin();
  waiting.erase(place);
  // Calls that have given up before their turn are passed over.
  if (first) publish(part, waiting.empty() ? next_number_ : waiting.front(), 0);
}

void HostTag::end(std::uint32_t number, const Ending& ending) {
  tell(number, ending);
  for (const Part part : kAllParts) leave(part, number);
}

void HostTag::pass_over(std::uint32_t number, const Ending& ending) {
  tell(number, ending);
  next_number_ = number + 1;
  reach(next_number_);
}

/// Tells that this rank is at call `number` with all parts that no earlier call waits for.
void HostTag::reach(std::uint32_t number) {
  for (const Part part : kAllParts) {
    if (waiting_[index_of(part)].empty()) publish(part, number, 0);
  }
}

void HostTag::tell(std::uint32_t number, const Ending& ending) {
  CallBoard& call = own().calls[number % Board::kCalls];
  call.reason.store(ending.reason, std::memory_order_relaxed);
  call.blamed.store(ending.blamed, std::memory_order_relaxed);
  call.state.store(state_word(number, ending.state), std::memory_order_release);
}

HostTag::Told HostTag::told(std::uint32_t rank, std::uint32_t number) const {
  const CallBoard& call = group_.memory.board(index_, rank).calls[number % Board::kCalls];
  Told result;
  const std::uint64_t state = call.state.load(std::memory_order_acquire);
  const auto here = static_cast<std::uint32_t>(state >> 32);
  const auto kind = static_cast<CallState>(static_cast<std::uint32_t>(state));
  if (kind == CallState::none || here != number) {
    const bool later = kind != CallState::none && static_cast<std::int32_t>(here - number) > 0;
    if (later) result = {.state = CallState::given_up, .blamed = bit(group_.ranks()[rank])};
    return result;
  }
  result.state = kind;
  for (std::size_t i = 0; i < call.signature.size(); ++i) {
    const std::uint64_t word = call.signature[i].load(std::memory_order_relaxed);
    std::memcpy(result.signature.data() + i * sizeof word, &word, sizeof word);
  }
  result.reason = call.reason.load(std::memory_order_relaxed);
  result.blamed = call.blamed.load(std::memory_order_relaxed);
  return result;
}

bool HostTag::is_free(Area area, std::uint32_t place) const {
  const std::optional<Use>& used = used_[static_cast<std::size_t>(area)][place];
  return !used || all_have_reached(used->part, used->position);
}

void HostTag::use(Area area, std::uint32_t place, Part part, std::uint32_t number,
                  std::uint32_t step) {
  used_[static_cast<std::size_t>(area)][place] = Use{part, position(number, step + 1)};
}

HostCalls::HostCalls(const HostGroup& group) : group_(group) {
  tags_.reserve(group.memory.shape().tags);
  for (std::uint32_t index = 0; index < group.memory.shape().tags; ++index) {
    tags_.emplace_back(group, index);
  }
}

bool HostCalls::has_come_true(std::uint64_t word) const {
  if ((word & kIsWish) == 0) return word != kAwake;
  const auto tag = static_cast<std::uint32_t>(word >> 58 & 31);
  const auto part = static_cast<std::size_t>(word >> 56 & 3);
  if (tag >= group_.memory.shape().tags || part >= kParts) return true;  // garbage: let it look
  const Position wanted = position(static_cast<std::uint32_t>(word >> 24),
                                   static_cast<std::uint32_t>(word) & kMostSteps);
  return group_.memory.lacking(tag, static_cast<Part>(part), wanted) == 0;
}

void HostCalls::ring(bool all) {
  moved_ = true;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::uint32_t rank = 0; rank < group_.memory.shape().ranks; ++rank) {
    if (rank == group_.self) continue;
    std::atomic<std::uint64_t>& sleeper = group_.memory.sleep_word(rank);
    const std::uint64_t word = sleeper.load(std::memory_order_relaxed);
    if (word == kAwake || (!all && !has_come_true(word))) continue;
    if (sleeper.exchange(kAwake) != kAwake) group_.bells->ring(rank);
  }
}

void HostCalls::pass_over(std::uint32_t index, std::uint32_t number,
                          const HostTag::Ending& ending) {
  tags_.at(index).pass_over(number, ending);
  ring(true);
}

void HostCalls::move(Time now) {
  for (HostWork* const work : open_) work->move(now);
}

bool HostCalls::can_move() const {
  return std::any_of(open_.begin(), open_.end(),
                     [](const HostWork* work) { return work->can_move(); });
}

bool HostCalls::fall_asleep() {
  if (open_.empty()) return true;
  std::optional<Wish> wish;
  if (open_.size() == 1) wish = open_.front()->wish();
  std::atomic<std::uint64_t>& own = group_.memory.sleep_word(group_.self);
  own.store(wish ? word_of(*wish) : kAnything);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool moves = can_move();
  if (moves) own.store(kAwake);
  return !moves;
}

void HostCalls::wake() {
  if (!open_.empty()) group_.memory.sleep_word(group_.self).store(kAwake);
}

}  // namespace tarpon::hosts
