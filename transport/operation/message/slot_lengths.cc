#include "transport/operation/message/slot_lengths.h"

#include <algorithm>

namespace tarpon {

void SlotLengths::assign(std::uint64_t bytes, std::span<const std::uint64_t> ranges,
                         std::uint32_t slot_bytes) {
  const std::uint64_t whole[] = {bytes};
  if (ranges.empty()) ranges = whole;
  slot_bytes_ = slot_bytes;
  slots_ = 0;
  last_bytes_ = 0;
  short_.clear();
  for (const std::uint64_t range : ranges) {
    if (slots_ > 0 && last_bytes_ < slot_bytes) short_.push_back({slots_ - 1, last_bytes_});
    slots_ += slot_count(range, slot_bytes);
    const auto rest = static_cast<std::uint32_t>(range % slot_bytes);
    last_bytes_ = rest == 0 && range > 0 ? slot_bytes : rest;
  }
}

std::uint32_t SlotLengths::inner(std::uint32_t slot) const {
  const auto found = std::lower_bound(
      short_.begin(), short_.end(), slot,
      [](const ShortSlot& one, std::uint32_t number) { return one.slot < number; });
  return found != short_.end() && found->slot == slot ? found->bytes : slot_bytes_;
}

}  // namespace tarpon
