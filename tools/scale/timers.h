// What happens later in the model, beside the events of the fabric: a heap, and a line for items
// that all take the same time and so stay in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "transport/time.h"

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

}  // namespace tarpon::scale
