#include "tools/collective/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tools/reference/reference.h"
#include "transport/clock.h"

namespace tarpon {
namespace {

constexpr std::uint32_t kDivergenceTag = 0x64697665;  // the job's own calls do not use it

/// Copies `from`, with NaN replaced by infinity: compare() must find a NaN of all ranks equal.
template <typename T>
void copy_numbers(std::span<const std::byte> from, std::span<std::byte> to) {
  for (std::uint64_t i = 0; i < from.size() / sizeof(T); ++i) {
    T value = element_at<T>(from, i);
    if (std::isnan(value)) value = static_cast<T>(std::numeric_limits<float>::infinity());
    std::memcpy(to.data() + i * sizeof value, &value, sizeof value);
  }
}

template <typename T>
Divergence compare(std::span<const std::byte> low, std::span<const std::byte> high) {
  Divergence result;
  result.count = low.size() / sizeof(T);
  for (std::uint64_t i = 0; i < result.count; ++i) {
    const auto least = static_cast<double>(element_at<T>(low, i));
    const auto most = static_cast<double>(element_at<T>(high, i));
    if (least == most) continue;
    ++result.differing;
    const double relative = (most - least) / std::max(std::abs(least), std::abs(most));
    result.max_relative = std::max(result.max_relative, std::isfinite(relative) ? relative : 1.0);
  }
  return result;
}

}  // namespace

std::optional<Divergence> measure_divergence(Communicator& communicator,
                                             std::span<const std::byte> result, DataType type,
                                             Duration deadline, std::span<std::byte> low,
                                             std::span<std::byte> high) {
  if (is_integer(type)) return std::nullopt;
  bool complete = true;
  double exact_us = 0;
  for (const ReduceOp function : {ReduceOp::min, ReduceOp::max}) {
    const std::span<std::byte> room = function == ReduceOp::min ? low : high;
    with_element_type(type, [&](auto zero) {
      if constexpr (kIsFloat<decltype(zero)>) {
        copy_numbers<decltype(zero)>(result, room);
      }
    });
    AllreduceArguments arguments;
    arguments.input = room.data();
    arguments.output = room.data();
    arguments.count = room.size() / element_bytes(type);
    arguments.type = type;
    arguments.function = function;
    arguments.tag = kDivergenceTag;
    arguments.deadline = deadline;
    const Time start = monotonic_now();
    const auto report = communicator.allreduce(arguments);
    const std::chrono::duration<double, std::micro> took = monotonic_now() - start;
    exact_us = std::max(exact_us, took.count());
    complete &= report && report->status == Status::complete;
  }
  if (!complete) return std::nullopt;
  Divergence found =
      with_element_type(type, [&](auto zero) { return compare<decltype(zero)>(low, high); });
  found.exact_us = exact_us;
  return found;
}

}  // namespace tarpon
