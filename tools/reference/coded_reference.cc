#include "tools/reference/coded_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "codec/hadamard.h"
#include "tools/reference/reference.h"

namespace tarpon {
namespace {

// Coding rounds each coefficient and each element a dozen times; so do additions.
constexpr double kRounding = 1e-5;

// transport/RELIABILITY.md, "Coded operations".
constexpr double kLargestGain = 2;

/// H of x, unscaled, in Sylvester's order.
void hadamard(std::vector<double>& x) {
  for (std::size_t half = x.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if ((i & half) != 0) continue;
      const double a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
}

class Expectation {
 public:
  Expectation(const Report& report, std::uint32_t world, Rank rank, ReduceOp function,
              std::optional<MissingFill> missing, const Contribution& contribution)
      : layout_(report.coded->layout),
        key_(report.coded->key),
        rescale_(report.rescale),
        world_(world),
        rank_(rank),
        function_(function),
        missing_(missing),
        contribution_(contribution),
        of_row_(layout_.rows()) {
    for (const ContributorRun& run : runs_of(report, layout_.coded_count(), world)) {
      const std::uint64_t elements = layout_.row_elements();
      for (std::uint64_t row = run.first / elements; row < (run.first + run.count) / elements;
           ++row) {
        of_row_[row] = run.contributors;
      }
    }
  }

  CodedExpectation run() const {
    CodedExpectation result;
    result.values.resize(layout_.count);
    result.tolerances.resize(layout_.count);
    for (std::uint64_t block = 0; block < layout_.blocks(); ++block) expect(block, result);
    return result;
  }

 private:
  void expect(std::uint64_t block, CodedExpectation& result) const {
    const std::uint64_t first = block * layout_.block;
    const std::uint64_t length = std::min<std::uint64_t>(layout_.block, layout_.count - first);
    std::vector<std::vector<double>> coded;
    double energy = 0;
    for (Rank rank = 0; rank < world_; ++rank) {
      coded.push_back(signed_block(
          block, length, [&](std::uint64_t i) { return double{contribution_(rank, first + i)}; }));
      double own = 0;
      for (const double value : coded.back()) own += value * value;
      energy += std::sqrt(own / layout_.block);
      hadamard(coded.back());
    }
    std::vector<double> sums(layout_.block, 0.0);
    std::uint32_t came = 0;
    for (std::uint32_t c = 0; c < layout_.block; ++c) {
      const std::uint64_t present = of_row_[layout_.row_of(block, c)];
      if (present == 0) continue;
      ++came;
      sums[c] = reduce_over<double>(
          present, world_, 0, function_, [&](Rank rank) { return coded[rank][c]; }, rescale_);
    }
    const double gain =
        came == 0 ? 0 : std::min(kLargestGain, static_cast<double>(layout_.block) / came);
    const double scale = gain / layout_.block;
    hadamard(sums);
    for (std::uint64_t i = 0; i < length; ++i) {
      const bool minus = codec::negative(key_, block, layout_.block, static_cast<std::uint32_t>(i));
      result.values[first + i] =
          came == 0 ? filled(first + i) : (minus ? -sums[i] : sums[i]) * scale;
      result.tolerances[first + i] = came == 0 && !missing_
                                         ? std::numeric_limits<double>::infinity()
                                         : kRounding * energy * world_ * std::max(1.0, gain);
    }
  }

  template <typename Value>
  std::vector<double> signed_block(std::uint64_t block, std::uint64_t length, Value value) const {
    std::vector<double> x(layout_.block, 0.0);
    for (std::uint64_t i = 0; i < length; ++i) {
      const bool minus = codec::negative(key_, block, layout_.block, static_cast<std::uint32_t>(i));
      x[i] = minus ? -value(i) : value(i);
    }
    return x;
  }

  /// The value at `index` if nothing of its block has arrived.
  double filled(std::uint64_t index) const {
    if (missing_.value_or(MissingFill::zero) == MissingFill::zero) return 0;
    const double own = contribution_(rank_, index);
    return function_ == ReduceOp::avg ? own : own * world_;
  }

  const codec::CodedLayout layout_;
  const codec::SignKey key_;
  const Rescale rescale_;
  const std::uint32_t world_;
  const Rank rank_;
  const ReduceOp function_;
  const std::optional<MissingFill> missing_;
  const Contribution& contribution_;
  std::vector<std::uint64_t> of_row_;
};

}  // namespace

CodedExpectation coded_expectation(const Report& report, std::uint32_t world, Rank rank,
                                   ReduceOp function, std::optional<MissingFill> missing,
                                   const Contribution& contribution) {
  return Expectation(report, world, rank, function, missing, contribution).run();
}

}  // namespace tarpon
