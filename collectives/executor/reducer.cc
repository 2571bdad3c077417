#include "collectives/executor/reducer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "collectives/schedule.h"
#include "transport/rank_mask.h"

namespace tarpon {

Reducer::Reducer(const Shape& shape)
    : shape_(shape),
      kernels_(reduce_kernels(shape.type, shape.function)),
      everybody_(shape.world >= 64 ? ~0ull : (1ull << shape.world) - 1),
      contributors_(tarpon::slots(shape.bytes, shape.slot_bytes), bit(shape.rank), shape.memory) {}

std::size_t Reducer::length(std::uint32_t slot) const {
  return slot_length(shape_.bytes, shape_.slot_bytes, slot);
}

void Reducer::deliver(Rank from, std::uint32_t slot, std::span<const std::byte> payload,
                      std::uint64_t) {
  std::byte* out = shape_.accumulator[slot];
  std::uint64_t& present = contributors_[slot];
  const bool first = present == bit(shape_.rank);
  const std::byte* a = first ? shape_.own[slot] : out;
  const std::size_t elements = payload.size() / element_bytes(shape_.type);
  present |= bit(from);
  const bool divide = present == everybody_ && shape_.function == ReduceOp::avg;
  if (!shape_.weights.empty() && shape_.weights[from] != 1) {
    kernels_.combine_weighted(out, a, payload.data(), elements, shape_.weights[from]);
    if (divide) kernels_.scale(out, elements, 1, shape_.world);
  } else if (divide) {
    kernels_.combine_scaled(out, a, payload.data(), elements, shape_.world);
  } else {
    kernels_.combine(out, a, payload.data(), elements);
  }
  if (!lost_.empty() && present != everybody_ && settled(slot)) rescale(slot);
  advance();
}

void Reducer::lost(Rank from, std::uint32_t slot) {
  if (lost_.empty()) lost_.assign(slots(), 0);
  lost_[slot] |= bit(from);
  if (settled(slot)) rescale(slot);
  advance();
}

/// Nothing more comes for this slot.
bool Reducer::settled(std::uint32_t slot) const {
  return (contributors_[slot] | (lost_.empty() ? 0 : lost_[slot])) == everybody_;
}

void Reducer::advance() {
  while (ready_ < slots() && settled(ready_)) ++ready_;
}

void Reducer::rescale(std::uint32_t slot) {
  const std::uint64_t present = contributors_[slot];
  std::byte* out = shape_.accumulator[slot];
  const std::byte* own = shape_.own[slot];
  if (present == bit(shape_.rank) && own != out) std::memcpy(out, own, length(slot));
  const auto count = static_cast<std::uint32_t>(std::popcount(present));
  const std::size_t elements = length(slot) / element_bytes(shape_.type);
  const bool average = shape_.function == ReduceOp::avg;
  if (shape_.rescale == Rescale::count) {
    kernels_.scale(out, elements, average ? 1 : shape_.world, count);
  } else if (average) {
    kernels_.scale(out, elements, 1, shape_.world);
  }
}

void Reducer::settle(std::uint32_t count) {
  for (const std::uint32_t end = ready_ + count; ready_ < end; ++ready_) {
    if (!settled(ready_)) rescale(ready_);
  }
}

SlotView Reducer::view(std::uint32_t slot) {
  return {shape_.accumulator[slot], contributors_[slot]};
}

void Reducer::write(std::uint32_t slot, std::span<std::byte> frame) {
  std::memcpy(frame.data(), shape_.accumulator[slot], frame.size());
}

}  // namespace tarpon
