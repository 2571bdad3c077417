// When each rank may put its next packet on the wire: its interface sends one after the other, and
// an episode (tools/scale/tail.h) keeps it silent for a while.
//
// The sending interface has no queue of its own in the model: its driver (TCP with its small
// queues, Tarpon by credit) hands over a packet when the previous one is gone. So a train is cut
// through: it reaches the receiver's queue a delay after its first bit left.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "tools/scale/tail.h"
#include "transport/port.h"

namespace tarpon::scale {

/// Items by time. Items of the same time leave in the order in which they were added.
template <typename Item>
class Timers {
 public:
  void add(Time time, const Item& item) {
    heap_.push_back({time, order_++, item});
    std::push_heap(heap_.begin(), heap_.end());
  }
  Time next() const { return heap_.empty() ? kNever : heap_.front().time; }
  /// REQUIRES: next() != kNever.
  Item pop() {
    std::pop_heap(heap_.begin(), heap_.end());
    const Item item = heap_.back().item;
    heap_.pop_back();
    return item;
  }
  void clear() { heap_.clear(); }

 private:
  struct Entry {
    Time time;
    std::uint64_t order;
    Item item;
    bool operator<(const Entry& other) const {
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };
  std::vector<Entry> heap_;
  std::uint64_t order_ = 0;
};

/// Items by time. REQUIRES: times do not decrease from one add() to the next.
template <typename Item>
class DelayLine {
 public:
  void add(Time time, const Item& item) { line_.emplace_back(time, item); }
  Time next() const { return line_.empty() ? kNever : line_.front().first; }
  /// REQUIRES: next() != kNever.
  Item pop() {
    const Item item = line_.front().second;
    line_.pop_front();
    return item;
  }
  void clear() { line_.clear(); }

 private:
  std::deque<std::pair<Time, Item>> line_;
};

class Senders {
 public:
  /// `bits_per_second` 0: whatever is ready leaves at once.
  Senders(std::uint32_t ranks, double bits_per_second)
      : ns_per_byte_(bits_per_second > 0 ? 8e9 / bits_per_second : 0), ranks_(ranks) {}

  /// Forgets what was planned. `episodes`: by rank, of the operation that begins at `start`; lent.
  void begin(Time start, const std::vector<Episode>& episodes) {
    start_ = start;
    episodes_ = &episodes;
    wakes_.clear();
    for (State& state : ranks_) state.planned = false;
  }

  /// Whether `rank` may send at `now`; if not, due() will name it when it may.
  bool may_send(Rank rank, Time now) {
    State& state = ranks_[rank];
    Time at = state.free_at > now ? state.free_at : now;
    const Episode& episode = (*episodes_)[rank];
    if (at >= start_ + episode.from && at < start_ + episode.end()) at = start_ + episode.end();
    if (at <= now) return true;
    if (!state.planned) wakes_.add(at, rank);
    state.planned = true;
    return false;
  }

  /// `rank` sends `wire_bytes` at `now`.
  void sent(Rank rank, Time now, std::uint32_t wire_bytes) {
    if (ns_per_byte_ <= 0) return;
    State& state = ranks_[rank];
    // Fractions of a nanosecond are carried over, so that the rate is exact.
    const double exact = wire_bytes * ns_per_byte_ + (state.free_at == now ? state.rest : 0);
    const double whole = std::floor(exact);
    state.rest = exact - whole;
    state.free_at = now + Duration(static_cast<std::int64_t>(whole));
  }

  Time next() const { return wakes_.next(); }
  /// REQUIRES: next() != kNever.
  Rank due() {
    const Rank rank = wakes_.pop();
    ranks_[rank].planned = false;
    return rank;
  }

 private:
  struct State {
    Time free_at{};
    double rest = 0;
    bool planned = false;
  };
  double ns_per_byte_;
  Time start_{};
  const std::vector<Episode>* episodes_ = nullptr;
  std::vector<State> ranks_;
  Timers<Rank> wakes_;
};

}  // namespace tarpon::scale
