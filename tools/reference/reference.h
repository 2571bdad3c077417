// The reduction in plain code, element by element: what results are checked against.
//
// Shared by the checks of the tool, the simulator and the tests, and independent of the kernels.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "collectives/allreduce.h"
#include "tools/reference/half_types.h"

namespace tarpon {

/// Calls f(T{}) with the C++ type T of `type`.
template <typename F>
auto with_element_type(DataType type, F f) {
  switch (type) {
    case DataType::float64:
      return f(double{});
    case DataType::int32:
      return f(std::int32_t{});
    case DataType::int64:
      return f(std::int64_t{});
    case DataType::float16:
      return f(Float16{});
    case DataType::bfloat16:
      return f(Bfloat16{});
    case DataType::int8:
      return f(std::int8_t{});
    case DataType::uint8:
      return f(std::uint8_t{});
    case DataType::int16:
      return f(std::int16_t{});
    case DataType::uint16:
      return f(std::uint16_t{});
    case DataType::uint32:
      return f(std::uint32_t{});
    case DataType::uint64:
      return f(std::uint64_t{});
    case DataType::float32:
      break;
  }
  return f(float{});
}

/// The type whose elements are T; the inverse of with_element_type().
template <typename T>
constexpr DataType data_type_of() {
  if constexpr (kIsHalf<T>)
    return std::is_same_v<T, Float16> ? DataType::float16 : DataType::bfloat16;
  if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? DataType::float32 : DataType::float64;
  }
  constexpr bool kSigned = std::is_signed_v<T>;
  switch (sizeof(T)) {
    case 1:
      return kSigned ? DataType::int8 : DataType::uint8;
    case 2:
      return kSigned ? DataType::int16 : DataType::uint16;
    case 4:
      return kSigned ? DataType::int32 : DataType::uint32;
    default:
      return kSigned ? DataType::int64 : DataType::uint64;
  }
}

/// REQUIRES: index < array.size() / sizeof(T).
template <typename T>
T element_at(std::span<const std::byte> array, std::uint64_t index) {
  T value;
  std::memcpy(&value, array.data() + index * sizeof(T), sizeof value);
  return value;
}

/// The mask of all ranks of a job; of a job of more than 64 ranks one that stands for all.
constexpr std::uint64_t all_ranks(std::uint32_t world) {
  return world >= 64 ? ~0ull : (1ull << world) - 1;
}

/// How many items the runs of a call of `count` elements cover: its elements, or the positions of
/// the coded bucket.
inline std::uint64_t positions_of(const Report& report, std::uint64_t count) {
  return report.coded ? report.coded->layout.coded_count() : count;
}

/// The contributors of each of the `count` elements, or positions. Report::runs is empty if all
/// ranks contributed to all.
inline std::vector<ContributorRun> runs_of(const Report& report, std::uint64_t count,
                                           std::uint32_t world) {
  return report.runs.empty() ? std::vector<ContributorRun>{{0, count, all_ranks(world)}}
                             : report.runs;
}

/// The smaller one. -0 is below +0; if one is NaN, the quiet NaN without sign and payload.
template <typename T>
T minimum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) ? a : b;
  }
  return b < a ? b : a;
}

/// The larger one, by the rules of minimum().
template <typename T>
T maximum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a < b ? b : a;
}

/// Returns a op b; avg adds. Integers wrap; NaN and zeros behave as
/// collectives/engine/kernels/reduce.h says. Half types are combined in SumOf<T>. Returns `a` if
/// the function is custom, or not defined for T.
template <typename T>
T combine(ReduceOp function, T a, T b) {
  using Wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  switch (function) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    case ReduceOp::prod:
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    case ReduceOp::min:
      return minimum(a, b);
    case ReduceOp::max:
      return maximum(a, b);
    case ReduceOp::band:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(a & b);
      break;
    case ReduceOp::bor:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(a | b);
      break;
    case ReduceOp::bxor:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(a ^ b);
      break;
    case ReduceOp::custom:
      break;
  }
  return a;
}

/// The reduction of value(rank) over `contributors`, in the order `first`, its successor, ..., its
/// predecessor. If contributors are missing, Rescale::count scales the result by their number, as
/// ReduceKernels::scale does. Other rules do not scale, since value() includes their weights. T{}
/// without contributors. REQUIRES: of more than 64 ranks, all_ranks().
template <typename T, typename Value>
T reduce_over(std::uint64_t contributors, std::uint32_t world, Rank first, ReduceOp function,
              Value value, Rescale rescale = Rescale::count) {
  using Sum = SumOf<T>;
  Sum result{};
  bool any = false;
  for (std::uint32_t step = 0; step < world; ++step) {
    const auto rank = static_cast<Rank>((first + step) % world);
    if (world <= 64 && (contributors >> rank & 1) == 0) continue;
    const auto next = static_cast<Sum>(value(rank));
    result = any ? combine<Sum>(function, result, next) : next;
    any = true;
  }
  if (!any) return T{};
  const int counted = rescale == Rescale::count && world <= 64 ? std::popcount(contributors)
                                                               : static_cast<int>(world);
  const auto present = static_cast<Sum>(counted);
  const auto all = static_cast<Sum>(world);
  if (function == ReduceOp::avg) return static_cast<T>(result / present);
  if (function == ReduceOp::sum && present != all) return static_cast<T>(result * (all / present));
  return static_cast<T>(result);
}

}  // namespace tarpon
