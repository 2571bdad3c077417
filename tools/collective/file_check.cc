#include "tools/collective/file_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tools/reference/coded_reference.h"
#include "tools/reference/reference.h"

namespace tarpon {
namespace {

/// What one element should be, in double precision.
struct Expected {
  double value = 0;      // the scaled reduction
  double magnitude = 0;  // the reduction of absolute values: rounding errors are relative to it
  double extent = 0;     // upper limit of intermediate values of finite contributions, in any order
  bool finite = true;    // all contributions are finite
};

bool is_order(ReduceOp function) {
  return function == ReduceOp::min || function == ReduceOp::max;
}

template <typename T>
Expected expect(const std::vector<NpyArray>& inputs, std::uint64_t contributors, std::uint64_t i,
                ReduceOp function, Rescale rescale) {
  const auto world = static_cast<std::uint32_t>(inputs.size());
  const auto value = [&](Rank rank) {
    return static_cast<double>(element_at<T>(inputs[rank].data, i));
  };
  const auto reduce = [&](std::uint64_t ranks, auto of) {
    return reduce_over<double>(ranks, world, 0, function, of, rescale);
  };
  Expected expected;
  double sum = 0;
  double product = 1;
  for (Rank rank = 0; rank < world; ++rank) {
    if (world <= kMaskRanks && (contributors >> rank & 1) == 0) continue;
    const double size = std::abs(value(rank));
    expected.finite &= std::isfinite(size);
    if (!std::isfinite(size)) continue;
    sum += size;
    product *= std::max(1.0, size);
  }
  expected.magnitude =
      std::abs(reduce(contributors, [&](Rank rank) { return std::abs(value(rank)); }));
  expected.extent = function == ReduceOp::prod ? product
                    : world <= kMaskRanks ? sum * world / std::max(1, std::popcount(contributors))
                                          : sum;
  expected.value = reduce(contributors, value);
  return expected;
}

template <typename T>
bool acceptable(T got, const Expected& expected, ReduceOp function, std::size_t world) {
  const T rounded = static_cast<T>(expected.value);
  if (got == rounded || (std::isnan(got) && std::isnan(rounded))) return true;
  if (is_order(function)) return false;
  // Whether an intermediate value overflows depends on the order of the operations.
  const bool overflows = !std::isfinite(static_cast<T>(expected.extent));
  if (!std::isfinite(got)) return overflows;
  if (!std::isfinite(rounded)) return overflows && expected.finite;
  const double tolerance = 4 * static_cast<double>(world) *
                           (expected.magnitude * std::numeric_limits<T>::epsilon() +
                            std::max(1.0, expected.extent) * std::numeric_limits<T>::denorm_min());
  return std::abs(static_cast<double>(got) - expected.value) <= tolerance;
}

/// Elements without a contributor are not checked.
std::uint64_t count_coded(const std::vector<NpyArray>& inputs, const NpyArray& result,
                          ReduceOp function, const Report& report) {
  const auto world = static_cast<std::uint32_t>(inputs.size());
  std::uint64_t wrong = 0;
  const CodedExpectation expected = coded_expectation(
      report, world, 0, function, std::nullopt,
      [&](Rank rank, std::uint64_t i) { return element_at<float>(inputs[rank].data, i); });
  for (std::uint64_t i = 0; i < result.elements(); ++i) {
    const double got = element_at<float>(result.data, i);
    const bool good = std::abs(got - expected.values[i]) <= expected.tolerances[i];
    wrong += good ? 0 : 1;
  }
  return wrong;
}

template <typename T>
std::uint64_t count(const std::vector<NpyArray>& inputs, const NpyArray& result, ReduceOp function,
                    const Report& report) {
  const auto world = static_cast<std::uint32_t>(inputs.size());
  std::uint64_t wrong = 0;
  if (report.nonfinite) {
    for (std::uint64_t i = 0; i < result.elements(); ++i) {
      wrong += std::isnan(element_at<T>(result.data, i)) ? 0 : 1;
    }
    return wrong;
  }
  if (report.coded) return count_coded(inputs, result, function, report);
  for (const ContributorRun& run : runs_of(report, result.elements(), world)) {
    if (run.contributors == 0) continue;
    for (std::uint64_t i = run.first; i < run.first + run.count; ++i) {
      const Expected expected = expect<T>(inputs, run.contributors, i, function, report.rescale);
      if (!acceptable(element_at<T>(result.data, i), expected, function, world)) ++wrong;
    }
  }
  return wrong;
}

}  // namespace

std::uint64_t count_wrong(const std::vector<NpyArray>& inputs, const NpyArray& result,
                          ReduceOp function, const Report& report) {
  return result.type == NpyType::float32 ? count<float>(inputs, result, function, report)
                                         : count<double>(inputs, result, function, report);
}

double file_error(const std::vector<NpyArray>& inputs, const NpyArray& result, ReduceOp function) {
  const auto world = static_cast<std::uint32_t>(inputs.size());
  const auto sum = [&](auto zero) {
    using T = decltype(zero);
    double error = 0, energy = 0;
    for (std::uint64_t i = 0; i < result.elements(); ++i) {
      const double expected = reduce_over<double>(
          all_ranks(world), world, 0, function,
          [&](Rank rank) { return static_cast<double>(element_at<T>(inputs[rank].data, i)); });
      const double off = static_cast<double>(element_at<T>(result.data, i)) - expected;
      error += off * off;
      energy += expected * expected;
    }
    return energy == 0 ? 0.0 : error / energy;
  };
  return result.type == NpyType::float32 ? sum(float{}) : sum(double{});
}

}  // namespace tarpon
