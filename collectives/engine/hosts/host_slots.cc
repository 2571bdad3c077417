#include "collectives/engine/hosts/host_slots.h"

#include <algorithm>
#include <cstring>

#include "transport/rank_mask.h"

namespace tarpon {

void HostSlots::lose_reduced() {
  if (reduced_ >= contributors_.size() || !none_.empty()) return;
  const auto owner = static_cast<std::uint32_t>(reduced_ / plan_.hosts());
  const auto shard = static_cast<std::uint32_t>(reduced_ % plan_.hosts());
  none_.assign(slots(plan_.shard(owner, shard).count * width_, slot_bytes_) + 1, 0);
  contributors_[reduced_] = none_.data();
}

/// Slots of a piece.
std::uint32_t HostSlots::count(std::uint32_t step, std::uint32_t owner, std::uint32_t shard) const {
  return slots(plan_.piece(step, owner, shard).count * width_, slot_bytes_);
}

std::uint64_t* HostSlots::kept(std::uint32_t step, std::uint32_t owner, std::uint32_t shard) const {
  return contributors_[owner * plan_.hosts() + shard] + std::uint64_t{step} * plan_.piece_slots();
}

void HostSlots::spread(std::uint32_t step, std::uint32_t owner, std::uint32_t shard,
                       std::byte* area) const {
  std::memcpy(area + plan_.contributors_offset(owner, shard), kept(step, owner, shard),
              count(step, owner, shard) * sizeof(std::uint64_t));
}

void HostSlots::copy(std::uint32_t step, std::uint32_t owner, std::uint32_t shard,
                     const std::byte* area, std::byte* to) const {
  const std::uint32_t count = this->count(step, owner, shard);
  const std::uint64_t bytes = plan_.piece(step, owner, shard).count * width_;
  const std::byte* const from = area + plan_.offset(owner, shard);
  std::uint64_t* const here = kept(step, owner, shard);
  std::memcpy(here, area + plan_.contributors_offset(owner, shard), count * sizeof(std::uint64_t));
  for (std::uint32_t slot = 0; slot < count; ++slot) here[slot] &= first_ranks(world_);
  for (std::uint32_t first = 0, end = 0; first < count; first = end) {
    const bool has = here[first] != 0;
    for (end = first + 1; end < count && (here[end] != 0) == has;) ++end;
    const std::uint64_t begin = std::uint64_t{first} * slot_bytes_;
    const std::uint64_t until = std::min(bytes, std::uint64_t{end} * slot_bytes_);
    if (has) std::memcpy(to + begin, from + begin, until - begin);
  }
}

void HostSlots::clear(std::uint32_t step, std::uint32_t owner, std::uint32_t shard) const {
  std::fill_n(kept(step, owner, shard), count(step, owner, shard), 0);
}

std::uint64_t HostSlots::elements(std::uint32_t owner) const {
  std::uint64_t sum = 0;
  for (std::uint32_t shard = 0; shard < plan_.hosts(); ++shard) {
    const std::uint64_t bytes = plan_.shard(owner, shard).count * width_;
    const std::uint64_t* const here = contributors_[owner * plan_.hosts() + shard];
    for (std::uint32_t slot = 0; slot < slots(bytes, slot_bytes_); ++slot) {
      if (here[slot] != 0) sum += slot_length(bytes, slot_bytes_, slot) / width_;
    }
  }
  return sum;
}

}  // namespace tarpon
