// Which slots of an incoming message are here: a bitmap, and the runs that it lacks.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bpf/wire.h"

namespace tarpon {

class Presence {
 public:
  void reset(std::uint32_t slots) {
    words_.assign((slots + 63u) / 64u, 0);
    slots_ = slots;
    count_ = 0;
    end_ = 0;
  }

  bool contains(std::uint32_t slot) const { return (words_[slot / 64] >> (slot % 64) & 1) != 0; }

  /// Marks `count` slots from `first` on. REQUIRES: none is present; first + count <= slots().
  void insert(std::uint32_t first, std::uint32_t count) {
    count_ += count;
    const std::uint32_t end = first + count;
    end_ = std::max(end_, end);
    while (first < end) {
      const std::uint32_t in_word = std::min(end - first, 64 - first % 64);
      words_[first / 64] |= (~0ull >> (64 - in_word)) << (first % 64);
      first += in_word;
    }
  }

  std::uint32_t slots() const { return slots_; }
  std::uint32_t count() const { return count_; }
  std::uint32_t end() const { return end_; }  // one above the highest slot present
  bool complete() const { return count_ == slots_; }
  bool has_gap() const { return count_ < end_; }

  /// Writes the runs of missing slots in [from, limit), first ones first, together at most
  /// `most_slots`, and returns how many runs fit.
  std::size_t missing(std::uint32_t limit, std::uint32_t most_slots, std::span<tarpon_range> out,
                      std::uint32_t from = 0) const {
    std::size_t runs = 0;
    std::uint32_t slot = from;
    limit = std::min(limit, slots_);
    while (runs < out.size() && most_slots > 0) {
      slot = next(slot, limit, false);
      if (slot >= limit) break;
      const std::uint32_t stop = next(slot, limit, true);
      const std::uint32_t length = std::min(stop - slot, most_slots);
      out[runs++] = {slot, length};
      most_slots -= length;
      slot = stop;
    }
    return runs;
  }

 private:
  /// First slot in [from, limit) whose presence is `wanted`, or limit.
  std::uint32_t next(std::uint32_t from, std::uint32_t limit, bool wanted) const {
    while (from < limit) {
      const std::uint64_t word = wanted ? words_[from / 64] : ~words_[from / 64];
      const std::uint64_t rest = word >> (from % 64);
      if (rest != 0)
        return std::min(from + static_cast<std::uint32_t>(std::countr_zero(rest)), limit);
      from = (from / 64 + 1) * 64;
    }
    return limit;
  }

  std::vector<std::uint64_t> words_;
  std::uint32_t slots_ = 0;
  std::uint32_t count_ = 0;
  std::uint32_t end_ = 0;
};

}  // namespace tarpon
