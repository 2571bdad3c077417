#include "collectives/executor/reducer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "collectives/schedule.h"

namespace tarpon {

Reducer::Reducer(const Shape& shape)
    : shape_(shape),
      kernels_(reduce_kernels(shape.type, shape.function)),
      everybody_(shape.world >= 64 ? ~0ull : (1ull << shape.world) - 1),
      contributors_(tarpon::slots(shape.bytes, shape.slot_bytes), 1ull << shape.rank) {}

std::size_t Reducer::length(std::uint32_t slot) const {
  return slot_length(shape_.bytes, shape_.slot_bytes, slot);
}

void Reducer::deliver(Rank from, std::uint32_t slot, std::span<const std::byte> payload,
                      std::uint64_t) {
  const std::size_t offset = std::size_t{slot} * shape_.slot_bytes;
  std::byte* out = shape_.accumulator + offset;
  std::uint64_t& present = contributors_[slot];
  const bool first = present == 1ull << shape_.rank;
  const std::byte* a = first ? shape_.own + offset : out;
  const std::size_t elements = payload.size() / element_bytes(shape_.type);
  present |= 1ull << from;
  if (present == everybody_ && shape_.function == ReduceOp::avg) {
    kernels_.combine_scaled(out, a, payload.data(), elements, shape_.world);
  } else {
    kernels_.combine(out, a, payload.data(), elements);
  }
  while (ready_ < contributors_.size() && contributors_[ready_] == everybody_) ++ready_;
}

void Reducer::settle() {
  for (std::uint32_t slot = 0; slot < slots(); ++slot) {
    const std::uint64_t present = contributors_[slot];
    if (present == everybody_) continue;
    const std::size_t offset = std::size_t{slot} * shape_.slot_bytes;
    std::byte* out = shape_.accumulator + offset;
    if (present == 1ull << shape_.rank && shape_.own != shape_.accumulator) {
      std::memcpy(out, shape_.own + offset, length(slot));
    }
    const auto count = static_cast<std::uint32_t>(std::popcount(present));
    const std::size_t elements = length(slot) / element_bytes(shape_.type);
    kernels_.scale(out, elements, shape_.function == ReduceOp::avg ? 1 : shape_.world, count);
  }
  ready_ = slots();
}

SlotView Reducer::view(std::uint32_t slot) {
  return {shape_.accumulator + std::size_t{slot} * shape_.slot_bytes, contributors_[slot]};
}

void Reducer::write(std::uint32_t slot, std::span<std::byte> frame) {
  std::memcpy(frame.data(), shape_.accumulator + std::size_t{slot} * shape_.slot_bytes,
              frame.size());
}

}  // namespace tarpon
