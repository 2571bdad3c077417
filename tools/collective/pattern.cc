#include "tools/collective/pattern.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tools/reference/coded_reference.h"
#include "tools/reference/reference.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

constexpr std::uint64_t kPeriod = 1021;

template <typename T>
using Period = std::array<T, kPeriod>;

template <typename T>
T pattern(ReduceOp function, Rank rank, std::uint64_t index) {
  // Factors are 1, and 2 for few, so that products of many ranks stay within float32's range.
  if (function == ReduceOp::prod) return (index + rank) % 16 == 0 ? T{2} : T{1};
  return static_cast<T>((index * 7 + std::uint64_t{rank} * 31) % 61);
}

template <typename T>
void fill(std::span<std::byte> buffer, ReduceOp function, Rank rank) {
  Period<T> period;
  for (std::uint64_t i = 0; i < kPeriod; ++i) period[i] = pattern<T>(function, rank, i);
  for (std::size_t at = 0; at < buffer.size(); at += sizeof period) {
    std::memcpy(buffer.data() + at, period.data(), std::min(sizeof period, buffer.size() - at));
  }
}

template <typename T>
std::uint64_t all_but_nan(std::span<const std::byte> result) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < result.size() / sizeof(T); ++i) {
    const T got = element_at<T>(result, i);
    wrong += got == got ? 1 : 0;
  }
  return wrong;
}

/// `rounds`: hosts round their sums of half precision before these are added up.
template <typename T>
std::uint64_t wrong_in_run(std::span<const std::byte> result, const Period<T>& period,
                           const ContributorRun& run, bool rounds) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = run.first; i < run.first + run.count; ++i) {
    const T got = element_at<T>(result, i);
    const T expected = period[i % kPeriod];
    if (std::memcmp(&got, &expected, sizeof got) == 0) continue;
    if constexpr (kIsHalf<T>) {
      const auto value = static_cast<double>(expected);
      const double off = std::abs(static_cast<double>(got) - value);
      if (rounds && off <= 2 * epsilon_of<T>() * std::abs(value)) continue;
    }
    ++wrong;
  }
  return wrong;
}

/// What the elements of `piece` must be: element i of a result is the i-th here, modulo kPeriod.
template <typename T>
Period<T> period_of(const ExpectedPiece& piece, ReduceOp function, std::uint32_t ranks,
                    Rescale rescale) {
  const std::uint64_t shift = kPeriod - piece.first % kPeriod + piece.first_in_input % kPeriod;
  Period<T> expected;
  for (std::uint64_t i = 0; i < kPeriod; ++i) {
    const std::uint64_t index = (i + shift) % kPeriod;
    const auto value = [&](Rank from) { return pattern<T>(function, from, index); };
    expected[i] = piece.from ? value(*piece.from)
                             : reduce_over<T>(piece.contributors & all_ranks(ranks), ranks, 0,
                                              function, value, rescale);
  }
  return expected;
}

std::uint64_t count_wrong_coded(std::span<const std::byte> result, ReduceOp function, Rank rank,
                                std::uint32_t world, MissingFill missing, const Report& report) {
  std::uint64_t wrong = 0;
  const CodedExpectation expected = coded_expectation(
      report, world, rank, function, missing,
      [&](Rank from, std::uint64_t i) { return pattern<float>(function, from, i % kPeriod); });
  for (std::uint64_t i = 0; i < expected.values.size(); ++i) {
    const double off = std::abs(double{element_at<float>(result, i)} - expected.values[i]);
    wrong += off <= expected.tolerances[i] ? 0 : 1;
  }
  return wrong;
}

}  // namespace

void fill_pattern(std::span<std::byte> buffer, DataType type, ReduceOp function, Rank rank) {
  with_element_type(type, [&](auto zero) { fill<decltype(zero)>(buffer, function, rank); });
}

std::uint64_t count_wrong(std::span<const std::byte> result, DataType type, ReduceOp function,
                          Rank rank, std::uint32_t world, MissingFill missing,
                          const Report& report) {
  if (report.coded && !report.nonfinite) {
    return count_wrong_coded(result, function, rank, world, missing, report);
  }
  return with_element_type(type, [&](auto zero) {
    using T = decltype(zero);
    if (report.nonfinite) return all_but_nan<T>(result);
    std::uint64_t wrong = 0;
    for (const ContributorRun& run : runs_of(report, result.size() / sizeof(T), world)) {
      // A hole holds zeros, or this rank's own contribution.
      const std::uint64_t filled = missing == MissingFill::local ? bit(rank) : 0;
      const std::uint64_t contributors = run.contributors != 0 ? run.contributors : filled;
      Period<T> expected;
      for (std::uint64_t i = 0; i < kPeriod; ++i) {
        // A hole filled with this rank's contribution is scaled by the count under every rule.
        const Rescale rescale = run.contributors != 0 ? report.rescale : Rescale::count;
        expected[i] = reduce_over<T>(
            contributors, world, 0, function,
            [&](Rank from) { return pattern<T>(function, from, i); }, rescale);
      }
      wrong += wrong_in_run<T>(result, expected, run, report.algorithm == Algorithm::hosts);
    }
    return wrong;
  });
}

std::uint64_t count_wrong(std::span<const std::byte> result, DataType type, ReduceOp function,
                          std::uint32_t ranks, const std::vector<ExpectedPiece>& pieces,
                          bool rounds, Rescale rescale) {
  return with_element_type(type, [&](auto zero) {
    using T = decltype(zero);
    std::uint64_t wrong = 0;
    for (const ExpectedPiece& piece : pieces) {
      const ContributorRun run{piece.first, piece.count, all_ranks(ranks)};
      wrong += wrong_in_run<T>(result, period_of<T>(piece, function, ranks, rescale), run, rounds);
    }
    return wrong;
  });
}

double pattern_error(std::span<const std::byte> result, DataType type, ReduceOp function,
                     std::uint32_t world) {
  return with_element_type(type, [&](auto zero) {
    using T = decltype(zero);
    Period<double> expected;
    for (std::uint64_t i = 0; i < kPeriod; ++i) {
      expected[i] = reduce_over<double>(all_ranks(world), world, 0, function, [&](Rank from) {
        return static_cast<double>(pattern<T>(function, from, i));
      });
    }
    double error = 0, energy = 0;
    for (std::uint64_t i = 0; i < result.size() / sizeof(T); ++i) {
      const double off = static_cast<double>(element_at<T>(result, i)) - expected[i % kPeriod];
      error += off * off;
      energy += expected[i % kPeriod] * expected[i % kPeriod];
    }
    return energy == 0 ? 0.0 : error / energy;
  });
}

}  // namespace tarpon
