#include "collectives/engine/exact/sums.h"

#include <utility>

namespace tarpon {

Sums::Sums(const Shape& shape)
    : shape_(shape), kernels_(reduce_kernels(shape.type, shape.function)) {
  if (shape.function == ReduceOp::custom) apart_.reserve(shape.most_bytes);
}

std::size_t Sums::width(bool partial) const {
  return partial && shape_.partials != nullptr ? sizeof(float) : element_bytes(shape_.type);
}

std::byte* Sums::result(std::uint64_t first) const {
  return shape_.output + first * element_bytes(shape_.type);
}

std::byte* Sums::partial(std::uint64_t first, std::uint64_t place) const {
  if (shape_.partials == nullptr) return result(first);
  return reinterpret_cast<std::byte*>(shape_.partials + place);
}

/// Returns a copy of the elements at `b`, in memory to which add() does not write.
const std::byte* Sums::apart(const std::byte* b, Range range) {
  apart_.assign(b, b + range.count * element_bytes(shape_.type));
  return apart_.data();
}

void Sums::add(Range range, std::uint64_t place, Operand a, Operand b, bool last) {
  std::byte* const out = last ? result(range.first) : partial(range.first, place);
  if (out == b.data && shape_.partials == nullptr) {
    // Only a function of the caller may depend on which operand is first.
    if (shape_.function == ReduceOp::custom) {
      b.data = apart(b.data, range);
    } else {
      std::swap(a, b);
    }
  }
  if (shape_.function == ReduceOp::custom) {
    shape_.custom.combine(out, a.data, b.data, range.count, shape_.custom.context);
    return;
  }
  if (a.partial && b.partial) return add_partials(range, place, a.data, b.data, last);
  // Sums and products of two operands do not depend on which one is first.
  if (b.partial) std::swap(a, b);
  const ReduceStep& step =
      a.partial ? (last ? kernels_.last : kernels_.next) : (last ? kernels_.only : kernels_.first);
  if (last && shape_.function == ReduceOp::avg) {
    step.combine_scaled(out, a.data, b.data, range.count, shape_.world);
  } else {
    step.combine(out, a.data, b.data, range.count);
  }
}

void Sums::add_partials(Range range, std::uint64_t place, const std::byte* a, const std::byte* b,
                        bool last) const {
  std::byte* const sum = partial(range.first, place);
  reduce_kernels(DataType::float32, shape_.function).next.combine(sum, a, b, range.count);
  if (!last) return;
  const std::uint32_t divisor = shape_.function == ReduceOp::avg ? shape_.world : 1;
  kernels_.scale_partial(result(range.first), sum, range.count, 1, divisor);
}

}  // namespace tarpon
