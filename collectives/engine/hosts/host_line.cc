#include "collectives/engine/hosts/host_line.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tarpon::hosts {
namespace {

constexpr std::array<Part, kParts> kAllParts{Part::copy_in, Part::add_up, Part::spread,
                                             Part::copy_out};

constexpr std::uint64_t state_word(std::uint32_t number, CallState state) {
  return std::uint64_t{number} << 32 | static_cast<std::uint32_t>(state);
}

void write(const Marks& marks, CallBoard& call) {
  call.marked.store(marks.ranks, std::memory_order_relaxed);
  call.heard.store(marks.heard ? 1 : 0, std::memory_order_relaxed);
}

std::size_t index_of(Part part) {
  return static_cast<std::size_t>(part);
}

}  // namespace

HostLine::HostLine(const HostGroup& group, std::uint32_t index, std::size_t most_open)
    : group_(group), index_(index) {
  for (auto& used : used_) used.resize(group.memory.shape().places);
  for (auto& waiting : waiting_) waiting.reserve(most_open);
}

void HostLine::begin(std::uint32_t number, const SignatureBytes& signature,
                     std::span<const Part> parts, const Marks& marks) {
  CallBoard& call = own().calls[number % Board::kCalls];
  for (std::size_t i = 0; i < call.signature.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, signature.data() + i * sizeof word, sizeof word);
    call.signature[i].store(word, std::memory_order_relaxed);
  }
  write(marks, call);
  call.state.store(state_word(number, CallState::begun), std::memory_order_release);
  forget_left_out(number);
  reach(number);
  for (const Part part : parts) waiting_[index_of(part)].push_back(number);
  next_number_ = number + 1;
}

void HostLine::mark(std::uint32_t number, const Marks& marks) {
  CallBoard& call = own().calls[number % Board::kCalls];
  if (call.state.load(std::memory_order_relaxed) >> 32 == number) write(marks, call);
}

Marks HostLine::marks(std::uint32_t rank, std::uint32_t number) const {
  const CallBoard& call = group_.memory.board(index_, rank).calls[number % Board::kCalls];
  const Marks marks{.heard = call.heard.load(std::memory_order_relaxed) != 0,
                    .ranks = call.marked.load(std::memory_order_relaxed)};
  // Another call may have taken the entry meanwhile.
  std::atomic_thread_fence(std::memory_order_acquire);
  return call.state.load(std::memory_order_relaxed) >> 32 == number ? marks : Marks();
}

bool HostLine::is_turn(Part part, std::uint32_t number) const {
  const auto& waiting = waiting_[index_of(part)];
  return !waiting.empty() && waiting.front() == number;
}

void HostLine::publish(Part part, std::uint32_t number, std::uint32_t steps) {
  own().done[index_of(part)].store(position(number, steps), std::memory_order_release);
}

void HostLine::leave(Part part, std::uint32_t number) {
  auto& waiting = waiting_[index_of(part)];
  const auto place = std::find(waiting.begin(), waiting.end(), number);
  if (place == waiting.end()) return;
  const bool first = place == waiting.begin();
  waiting.erase(place);
  // Calls that have given up before their turn are passed over.
  if (first) publish(part, waiting.empty() ? next_number_ : waiting.front(), 0);
}

void HostLine::end(std::uint32_t number, const Ending& ending) {
  // A call that has left its places may end long after: its entry may be that of a later one.
  const std::uint64_t state = own().calls[number % Board::kCalls].state;
  if (state == state_word(number, CallState::begun)) tell(number, ending);
  for (const Part part : kAllParts) leave(part, number);
}

void HostLine::pass_over(std::uint32_t number, const Ending& ending) {
  tell(number, ending);
  next_number_ = number + 1;
  reach(next_number_);
}

/// Tells that this rank is at call `number` with all parts that no earlier call waits for.
void HostLine::reach(std::uint32_t number) {
  for (const Part part : kAllParts) {
    if (waiting_[index_of(part)].empty()) publish(part, number, 0);
  }
}

void HostLine::tell(std::uint32_t number, const Ending& ending) {
  CallBoard& call = own().calls[number % Board::kCalls];
  call.reason.store(ending.reason, std::memory_order_relaxed);
  call.blamed.store(ending.blamed, std::memory_order_relaxed);
  call.state.store(state_word(number, ending.state), std::memory_order_release);
}

HostLine::Told HostLine::told(std::uint32_t rank, std::uint32_t number) const {
  const CallBoard& call = group_.memory.board(index_, rank).calls[number % Board::kCalls];
  Told result;
  const std::uint64_t state = call.state.load(std::memory_order_acquire);
  const auto here = static_cast<std::uint32_t>(state >> 32);
  const auto kind = static_cast<CallState>(static_cast<std::uint32_t>(state));
  if (kind == CallState::none || here != number) {
    const bool later = kind != CallState::none && static_cast<std::int32_t>(here - number) > 0;
    if (later) {
      result.state = CallState::given_up;
      result.overtaken = true;
      result.blamed = bit(group_.ranks()[rank]);
    }
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

/// Numbers wrap. What this rank has said long ago must not count for later calls.
void HostLine::forget_left_out(std::uint32_t number) {
  constexpr std::uint32_t kLongAgo = 1u << 20;
  if (number % kLongAgo != 0) return;
  for (std::atomic<Position>& before : own().left_out) {
    const auto end = static_cast<std::uint32_t>(before.load(std::memory_order_relaxed) >> 32);
    if (number - end >= kLongAgo) before.store(0, std::memory_order_relaxed);
  }
}

void HostLine::leave_out(std::uint64_t ranks, std::uint32_t number) {
  const Position end = position(number + 1, 0);
  for (; ranks != 0; ranks &= ranks - 1) {
    std::atomic<Position>& before =
        own().left_out[static_cast<std::size_t>(std::countr_zero(ranks))];
    const Position latest = before.load(std::memory_order_relaxed);
    if (latest == 0 || !has_reached(latest, end)) before.store(end);
  }
  // What this rank writes next must not be seen without it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

std::uint64_t HostLine::left_out(std::uint32_t number) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t ranks = group_.memory.shape().ranks;
  std::uint64_t result = 0;
  for (std::uint32_t by = 0; by < ranks; ++by) {
    const Board& board = group_.memory.board(index_, by);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const Position end = board.left_out[rank].load(std::memory_order_relaxed);
      // Zero: it has left out no rank yet.
      if (end != 0 && has_reached(end, position(number + 1, 0))) result |= std::uint64_t{1} << rank;
    }
  }
  return result;
}

std::uint64_t HostLine::users(Area area, std::uint32_t place) const {
  const std::optional<Use>& used = used_[static_cast<std::size_t>(area)][place];
  if (!used) return 0;
  const std::uint64_t lacking = this->lacking(used->part, position(used->number, used->step + 1));
  return lacking != 0 && used->bounded ? lacking & ~left_out(used->number) : lacking;
}

void HostLine::use(Area area, std::uint32_t place, const Use& use) {
  used_[static_cast<std::size_t>(area)][place] = use;
}

}  // namespace tarpon::hosts
