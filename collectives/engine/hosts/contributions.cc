#include "collectives/engine/hosts/contributions.h"

#include <algorithm>
#include <cstring>

#include "collectives/engine/schedules/host_plan.h"

namespace tarpon {

Contributions::Contributions(const Shape& shape)
    : shape_(shape), kernels_(reduce_kernels(shape.type, shape.function)) {
  const std::size_t elements = kBlockBytes / element_bytes(shape.type);
  sums_.resize(elements * std::max(element_bytes(shape.type), sizeof(float)));
}

void Contributions::add_up(std::byte* out, std::span<const std::byte* const> from,
                           std::uint64_t elements) {
  const std::uint64_t block = kBlockBytes / element_bytes(shape_.type);
  for (std::uint64_t first = 0; first < elements; first += block) {
    add_block(out, first, std::min(block, elements - first), from);
  }
}

void Contributions::add_block(std::byte* out, std::uint64_t first, std::uint64_t elements,
                              std::span<const std::byte* const> from) {
  const std::size_t element = element_bytes(shape_.type);
  const auto contribution = [&](std::size_t i) { return from[i] + first * element; };
  std::byte* const result = out + first * element;
  if (from.size() == 1) {
    if (shape_.function == ReduceOp::avg) {
      return kernels_.scale(result, contribution(0), elements, 1, shape_.ranks);
    }
    std::memmove(result, contribution(0), elements * element);
    return;
  }
  const void* sum = contribution(0);
  for (std::size_t i = 1; i < from.size(); ++i) {
    const bool last = i + 1 == from.size();
    // A kernel may write over its first operand, over the second one only beside partial results.
    const bool partial = i > 1 && needs_partials(shape_.type, shape_.function);
    const bool apart = last && result == contribution(i) && !partial;
    void* const to = last && !apart ? static_cast<void*>(result) : sums_.data();
    if (shape_.function == ReduceOp::custom) {
      shape_.custom.combine(to, sum, contribution(i), elements, shape_.custom.context);
    } else {
      const ReduceStep& step = from.size() == 2 ? kernels_.only
                               : i == 1         ? kernels_.first
                               : last           ? kernels_.last
                                                : kernels_.next;
      if (last && shape_.function == ReduceOp::avg) {
        step.combine_scaled(to, sum, contribution(i), elements, shape_.ranks);
      } else {
        step.combine(to, sum, contribution(i), elements);
      }
    }
    if (apart) std::memcpy(result, to, elements * element);
    sum = to;
  }
}

Contributions::Shape sums_of_host(const AllreduceArguments& call, bool last, std::uint32_t world) {
  const bool sum = !last && call.function == ReduceOp::avg && !HostPlan::divides_in_host(call);
  return {.type = call.type,
          .function = sum ? ReduceOp::sum : call.function,
          .custom = call.custom,
          .ranks = world};
}

}  // namespace tarpon
