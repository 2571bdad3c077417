#include "collectives/engine/bounded/reducer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "collectives/engine/schedules/shards.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

constexpr int kWaiting = 2;  // contributions in half precision fit in the room of one float

}  // namespace

Reducer::Reducer(const Shape& shape)
    : shape_(shape),
      kernels_(reduce_kernels(shape.type, shape.function)),
      everybody_(first_ranks(shape.world)),
      contributors_(tarpon::slots(shape.bytes, shape.slot_bytes), bit(shape.rank), shape.memory),
      sum_(shape.partials == nullptr ? 0 : shape.slot_bytes / element_bytes(shape.type),
           shape.memory) {}

std::size_t Reducer::length(std::uint32_t slot) const {
  return slot_length(shape_.bytes, shape_.slot_bytes, slot);
}

void Reducer::deliver(const IncomingRun& run) {
  for (std::uint32_t i = 0; i < run.packets.size(); ++i) {
    const std::uint32_t slot = run.first + i;
    add(run.from, slot, run.payload(i));
    if (!lost_.empty() && contributors_[slot] != everybody_ && settled(slot)) rescale(slot);
  }
  advance();
}

/// Whether the contributions `present`, besides the owner's own, wait unchanged.
bool Reducer::waits(std::uint64_t present) const {
  return shape_.partials != nullptr && std::popcount(present) <= 1 + kWaiting;
}

/// Adds the one or two contributions that wait to the owner's own. Returns the sum in float32.
std::byte* Reducer::sum_of_waiting(std::uint32_t slot, std::uint64_t present) {
  auto* const sum = reinterpret_cast<std::byte*>(sum_.data());
  const std::size_t elements = length(slot) / element_bytes(shape_.type);
  kernels_.first.combine(sum, shape_.own[slot], sums(slot), elements);
  if (std::popcount(present) > 2) {
    kernels_.next.combine(sum, sum, sums(slot) + length(slot), elements);
  }
  return sum;
}

/// Where the slot is reduced until its last contribution. Contributions wait there too.
std::byte* Reducer::sums(std::uint32_t slot) const {
  if (shape_.partials == nullptr) return shape_.accumulator[slot];
  const std::size_t elements = shape_.slot_bytes / element_bytes(shape_.type);
  return reinterpret_cast<std::byte*>(shape_.partials + slot * elements);
}

void Reducer::add(Rank from, std::uint32_t slot, std::span<const std::byte> payload) {
  std::uint64_t& present = contributors_[slot];
  const std::uint64_t before = std::exchange(present, present | bit(from));
  const bool first = before == bit(shape_.rank);
  const bool whole = present == everybody_;
  if (waits(present) && !whole) {
    std::memcpy(sums(slot) + (first ? 0 : payload.size()), payload.data(), payload.size());
    return;
  }
  const ReduceStep& step =
      first ? (whole ? kernels_.only : kernels_.first) : (whole ? kernels_.last : kernels_.next);
  std::byte* const out = whole ? shape_.accumulator[slot] : sums(slot);
  const std::byte* const a = first           ? shape_.own[slot]
                             : waits(before) ? sum_of_waiting(slot, before)
                                             : sums(slot);
  const std::size_t elements = payload.size() / element_bytes(shape_.type);
  if (whole && shape_.function == ReduceOp::avg) {
    step.combine_scaled(out, a, payload.data(), elements, shape_.world);
  } else {
    step.combine(out, a, payload.data(), elements);
  }
}

void Reducer::lost(Rank from, std::uint32_t slot) {
  if (lost_.empty()) lost_.assign(slots(), 0);
  lost_[slot] |= bit(from);
  if (settled(slot)) rescale(slot);
  advance();
}

/// Whether no more contributions come for this slot.
bool Reducer::settled(std::uint32_t slot) const {
  return (contributors_[slot] | (lost_.empty() ? 0 : lost_[slot])) == everybody_;
}

void Reducer::advance() {
  while (ready_ < slots() && settled(ready_)) ++ready_;
}

void Reducer::rescale(std::uint32_t slot) {
  const std::uint64_t present = contributors_[slot];
  const bool alone = present == bit(shape_.rank);
  std::byte* const out = shape_.accumulator[slot];
  const std::byte* const in = alone            ? shape_.own[slot]
                              : waits(present) ? sum_of_waiting(slot, present)
                                               : sums(slot);
  const auto count = static_cast<std::uint32_t>(std::popcount(present));
  const auto [up, down] = rescaling(shape_.rescale, shape_.function, shape_.world, count);
  if (up == down && in == out) return;
  if (up == down && alone) {
    std::memcpy(out, in, length(slot));
    return;
  }
  const auto scale = alone ? kernels_.scale : kernels_.scale_partial;
  scale(out, in, length(slot) / element_bytes(shape_.type), up, down);
}

void Reducer::settle(std::uint32_t count) {
  for (const std::uint32_t end = ready_ + count; ready_ < end; ++ready_) {
    if (!settled(ready_)) rescale(ready_);
  }
}

OutgoingRun Reducer::lend(std::uint32_t first, std::uint32_t most) {
  const std::uint64_t contributors = contributors_[first];
  std::uint32_t count = 1;
  while (count < most && contributors_[first + count] == contributors) ++count;
  return {shape_.accumulator[first], shape_.accumulator.stride, count, contributors};
}

}  // namespace tarpon
