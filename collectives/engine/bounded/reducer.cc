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
      contributors_(tarpon::slots(shape.bytes, shape.slot_bytes),
                    shape.parked == nullptr ? bit(shape.rank) : 0, shape.memory),
      arrived_(shape.parked == nullptr ? 0 : contributors_.size(), 0, shape.memory),
      sum_(shape.partials == nullptr ? 0 : shape.slot_bytes / element_bytes(shape.type),
           shape.memory),
      single_(shape.parked == nullptr ? 0 : shape.slot_bytes) {
  if (shape_.senders == 0) shape_.senders = everybody_;
}

std::size_t Reducer::length(std::uint32_t slot) const {
  return slot_length(shape_.bytes, shape_.slot_bytes, slot);
}

void Reducer::deliver(const IncomingRun& run) {
  for (std::uint32_t i = 0; i < run.packets.size(); ++i) {
    const std::uint32_t slot = run.first + i;
    add(run.from, of_hosts() ? run.contributors & shape_.carried[run.from] : 0, slot,
        run.payload(i));
    if (!lost_.empty() && arrived(slot) != shape_.senders && settled(slot)) rescale(slot);
  }
  advance();
}

/// Whether the contributions `present`, besides the owner's own, wait unchanged.
bool Reducer::waits(std::uint64_t present) const {
  return shape_.partials != nullptr && !of_hosts() && std::popcount(present) <= 1 + kWaiting;
}

/// Where contributions to the slot wait for the own one: the only one unchanged, several as a sum.
std::byte* Reducer::parked(std::uint32_t slot) const {
  const std::size_t elements = shape_.slot_bytes / element_bytes(shape_.type);
  return reinterpret_cast<std::byte*>(shape_.parked) + slot * elements * parked_width(shape_.type);
}

void Reducer::park(Rank from, std::uint32_t slot, std::span<const std::byte> payload) {
  const std::uint64_t before = std::exchange(arrived_[slot], arrived_[slot] | bit(from));
  std::byte* const sum = parked(slot);
  const std::size_t elements = payload.size() / element_bytes(shape_.type);
  if (before == 0) {
    std::memcpy(sum, payload.data(), payload.size());
  } else if (std::has_single_bit(before)) {
    std::memcpy(single_.data(), sum, payload.size());
    kernels_.first.combine(sum, single_.data(), payload.data(), elements);
  } else {
    kernels_.next.combine(sum, sum, payload.data(), elements);
  }
}

void Reducer::provide(std::uint32_t count, std::uint64_t contributors) {
  for (const std::uint32_t end = provided_ + count; provided_ < end; ++provided_) {
    const std::uint32_t slot = provided_;
    contributors_[slot] |= contributors;
    const std::uint64_t waited = std::exchange(arrived_[slot], arrived_[slot] | bit(shape_.rank));
    const std::span<const std::byte> payload(parked(slot), length(slot));
    const std::size_t elements = length(slot) / element_bytes(shape_.type);
    if (shape_.senders == bit(shape_.rank)) {
      rescale(slot);
    } else if (std::has_single_bit(waited)) {
      combine(slot, bit(shape_.rank), payload);
    } else if (waited != 0) {
      // A kernel may write over elements: its first operand, or the second beside a partial result.
      const bool partial = needs_partials(shape_.type, shape_.function);
      const std::byte* const a = partial ? parked(slot) : shape_.own[slot];
      const std::byte* const b = partial ? shape_.own[slot] : parked(slot);
      if (arrived_[slot] == shape_.senders) {
        finish(slot, kernels_.last, a, b, elements);
      } else {
        kernels_.next.combine(sums(slot), a, b, elements);
      }
    }
    if (arrived_[slot] != shape_.senders && settled(slot)) rescale(slot);
  }
  advance();
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

/// `contributors`: to what `from` sends, besides `from`.
void Reducer::add(Rank from, std::uint64_t contributors, std::uint32_t slot,
                  std::span<const std::byte> payload) {
  contributors_[slot] |= contributors | bit(from);
  if (of_hosts() && slot >= provided_) return park(from, slot, payload);
  const std::uint64_t before = arrived(slot) & ~bit(from);
  arrived(slot) |= bit(from);
  combine(slot, before, payload);
}

/// Adds a contribution to the slot. `before`: arrived() without it. REQUIRES: arrived() has it.
void Reducer::combine(std::uint32_t slot, std::uint64_t before,
                      std::span<const std::byte> payload) {
  const bool first = before == bit(shape_.rank);
  const bool last = arrived(slot) == shape_.senders;
  if (waits(arrived(slot)) && !last) {
    std::memcpy(sums(slot) + (first ? 0 : payload.size()), payload.data(), payload.size());
    return;
  }
  const std::byte* const a = first           ? shape_.own[slot]
                             : waits(before) ? sum_of_waiting(slot, before)
                                             : sums(slot);
  const std::size_t elements = payload.size() / element_bytes(shape_.type);
  if (last) return finish(slot, first ? kernels_.only : kernels_.last, a, payload.data(), elements);
  (first ? kernels_.first : kernels_.next).combine(sums(slot), a, payload.data(), elements);
}

/// Makes the result of a slot with the contributions of all senders. Hosts may have left ranks out.
void Reducer::finish(std::uint32_t slot, const ReduceStep& step, const std::byte* a,
                     const std::byte* b, std::size_t elements) {
  std::byte* const out = shape_.accumulator[slot];
  if (contributors_[slot] == everybody_ && shape_.function == ReduceOp::avg) {
    return step.combine_scaled(out, a, b, elements, shape_.world);
  }
  step.combine(out, a, b, elements);
  if (contributors_[slot] == everybody_) return;
  lacked_ |= everybody_ & ~contributors_[slot];
  const auto [up, down] = factor(slot);
  if (up != down) kernels_.scale(out, out, elements, up, down);
}

/// On a slot that lacks ranks.
Ratio Reducer::factor(std::uint32_t slot) const {
  const auto count = static_cast<std::uint32_t>(std::popcount(contributors_[slot]));
  return rescaling(shape_.rescale, shape_.function, shape_.world, count);
}

void Reducer::lost(Rank from, std::uint32_t slot) {
  if (lost_.empty()) lost_.assign(slots(), 0);
  lost_[slot] |= bit(from);
  if (settled(slot)) rescale(slot);
  advance();
}

/// Whether no more contributions come for this slot.
bool Reducer::settled(std::uint32_t slot) const {
  return (arrived(slot) | (lost_.empty() ? 0 : lost_[slot])) == shape_.senders;
}

void Reducer::advance() {
  while (ready_ < slots() && settled(ready_)) ++ready_;
}

void Reducer::rescale(std::uint32_t slot) {
  const std::uint64_t present = arrived(slot);
  const bool alone = present == bit(shape_.rank);
  std::byte* const out = shape_.accumulator[slot];
  const std::byte* const in = alone            ? shape_.own[slot]
                              : waits(present) ? sum_of_waiting(slot, present)
                                               : sums(slot);
  const auto [up, down] = factor(slot);
  lacked_ |= everybody_ & ~contributors_[slot];
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
