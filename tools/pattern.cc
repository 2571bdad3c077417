#include "tools/pattern.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

namespace tarpon {
namespace {

constexpr std::uint64_t kPeriod = 1024;

template <typename T>
using Period = std::array<T, kPeriod>;

template <typename T>
Period<T> pattern(ReduceOp function, Rank rank) {
  Period<T> period;
  for (std::uint64_t i = 0; i < kPeriod; ++i) {
    // Products of many ranks stay within float32's range: factors of 1, few of 2.
    const std::uint64_t value = function == ReduceOp::prod
                                    ? 1 + ((i + rank) % 16 == 0 ? 1 : 0)
                                    : (i * 7 + std::uint64_t{rank} * 31) % 61;
    period[i] = static_cast<T>(value);
  }
  return period;
}

template <typename T>
T combine(ReduceOp function, T a, T b) {
  switch (function) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return static_cast<T>(a + b);
    case ReduceOp::prod:
      return static_cast<T>(a * b);
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
  }
  return a;
}

/// The reduction over `contributors`, scaled by their count as ReduceKernels::scale does.
template <typename T>
Period<T> expected(ReduceOp function, std::uint64_t contributors, std::uint32_t world) {
  Period<T> result{};
  bool first = true;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    if ((contributors >> rank & 1) == 0) continue;
    const Period<T> one = pattern<T>(function, static_cast<Rank>(rank));
    for (std::uint64_t i = 0; i < kPeriod; ++i) {
      result[i] = first ? one[i] : combine(function, result[i], one[i]);
    }
    first = false;
  }
  const auto present = static_cast<std::uint32_t>(std::popcount(contributors));
  const T factor = static_cast<T>(world) / static_cast<T>(std::max(1u, present));
  for (T& value : result) {
    if (function == ReduceOp::avg) value /= static_cast<T>(std::max(1u, present));
    if (function == ReduceOp::sum && present != world) value *= factor;
  }
  return result;
}

template <typename T>
void fill(std::span<std::byte> buffer, ReduceOp function, Rank rank) {
  const Period<T> period = pattern<T>(function, rank);
  for (std::size_t at = 0; at < buffer.size(); at += sizeof period) {
    std::memcpy(buffer.data() + at, period.data(), std::min(sizeof period, buffer.size() - at));
  }
}

template <typename T>
std::uint64_t wrong_in_run(std::span<const std::byte> result, const Period<T>& period,
                           const ContributorRun& run) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = run.first; i < run.first + run.count; ++i) {
    T got;
    std::memcpy(&got, result.data() + i * sizeof(T), sizeof got);
    wrong += std::memcmp(&got, &period[i % kPeriod], sizeof got) != 0 ? 1 : 0;
  }
  return wrong;
}

template <typename T>
std::uint64_t count(std::span<const std::byte> result, ReduceOp function, Rank rank,
                    std::uint32_t world, MissingFill missing, const Report& report) {
  const std::uint64_t everybody = world >= 64 ? ~0ull : (1ull << world) - 1;
  std::vector<ContributorRun> runs = report.runs;
  if (runs.empty()) runs = {{0, result.size() / sizeof(T), everybody}};
  std::uint64_t wrong = 0;
  for (const ContributorRun& run : runs) {
    // A hole holds zeros, or what this rank alone would have said.
    const std::uint64_t filled = missing == MissingFill::local ? 1ull << rank : 0;
    const std::uint64_t contributors = run.contributors != 0 ? run.contributors : filled;
    wrong += wrong_in_run<T>(result, expected<T>(function, contributors, world), run);
  }
  return wrong;
}

}  // namespace

void fill_pattern(std::span<std::byte> buffer, DataType type, ReduceOp function, Rank rank) {
  switch (type) {
    case DataType::float32:
      return fill<float>(buffer, function, rank);
    case DataType::float64:
      return fill<double>(buffer, function, rank);
    case DataType::int32:
      return fill<std::int32_t>(buffer, function, rank);
    case DataType::int64:
      return fill<std::int64_t>(buffer, function, rank);
  }
}

std::uint64_t count_wrong(std::span<const std::byte> result, DataType type, ReduceOp function,
                          Rank rank, std::uint32_t world, MissingFill missing,
                          const Report& report) {
  switch (type) {
    case DataType::float32:
      return count<float>(result, function, rank, world, missing, report);
    case DataType::float64:
      return count<double>(result, function, rank, world, missing, report);
    case DataType::int32:
      return count<std::int32_t>(result, function, rank, world, missing, report);
    case DataType::int64:
      return count<std::int64_t>(result, function, rank, world, missing, report);
  }
  return 0;
}

}  // namespace tarpon
