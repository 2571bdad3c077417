// How many slots a message has, and how long each one is.
//
// A value. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tarpon {

inline std::uint32_t slot_count(std::uint64_t bytes, std::uint32_t slot_bytes) {
  return static_cast<std::uint32_t>((bytes + slot_bytes - 1) / slot_bytes);
}

class SlotLengths {
 public:
  /// `ranges`: as in SendSpec. Keeps its memory.
  void assign(std::uint64_t bytes, std::span<const std::uint64_t> ranges, std::uint32_t slot_bytes);

  std::uint32_t slots() const { return slots_; }

  /// Bytes of `slot` < slots().
  std::uint32_t of(std::uint32_t slot) const {
    if (slot + 1 == slots_) return last_bytes_;
    return short_.empty() ? slot_bytes_ : inner(slot);
  }

  /// Bytes of all slots for which `counts(slot)` holds, of which there are `number`.
  template <typename Counts>
  std::uint64_t sum(std::uint32_t number, Counts counts) const {
    std::uint64_t bytes = std::uint64_t{number} * slot_bytes_;
    for (const ShortSlot& one : short_) {
      if (counts(one.slot)) bytes -= slot_bytes_ - one.bytes;
    }
    if (slots_ > 0 && counts(slots_ - 1)) bytes -= slot_bytes_ - last_bytes_;
    return bytes;
  }

 private:
  struct ShortSlot {
    std::uint32_t slot = 0;
    std::uint32_t bytes = 0;
  };
  std::uint32_t inner(std::uint32_t slot) const;

  std::uint32_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0;
  std::uint32_t last_bytes_ = 0;
  std::vector<ShortSlot> short_;  // without the last slot; in order
};

}  // namespace tarpon
