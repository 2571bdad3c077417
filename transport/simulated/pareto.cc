#include "transport/simulated/pareto.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace tarpon {
namespace {

constexpr std::uint64_t kOne = 1ull << 32;
constexpr int kBits = 24;  // of the fraction that are computed

__extension__ using Wide = unsigned __int128;

/// Product of two numbers in units of 2^-32.
std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(Wide{a} * b >> 32);
}

/// 2^(2^-i) in units of 2^-32, i = 1..24.
constexpr std::array<std::uint64_t, kBits> kRoots = {
    6074001000, 5107605667, 4683695048, 4485121744, 4389014833, 4341736423, 4318288544, 4306612134,
    4300785774, 4297875550, 4296421177, 4295694175, 4295330720, 4295149004, 4295058149, 4295012722,
    4294990009, 4294978653, 4294972974, 4294970135, 4294968716, 4294968006, 4294967651, 4294967473};

}  // namespace

std::uint64_t fixed_log2(std::uint64_t x) {
  const int whole = 63 - std::countl_zero(x) - 32;
  // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): x is at least 1, with 32
  // bits
  std::uint64_t mantissa = x >> whole;  // in [1, 2)
  std::uint64_t result = static_cast<std::uint64_t>(whole) << 32;
  for (int bit = 1; bit <= kBits; ++bit) {
    mantissa = times(mantissa, mantissa);
    const std::uint64_t carry = mantissa / (2 * kOne);  // 0 or 1; a branch would be mispredicted
    mantissa >>= carry;
    result += carry << (32 - bit);
  }
  return result;
}

std::uint64_t fixed_exp2(std::uint64_t x) {
  std::uint64_t result = kOne;
  for (int bit = 1; bit <= kBits; ++bit) {
    const std::uint64_t more = times(result, kRoots[static_cast<std::size_t>(bit - 1)]);
    result = (x & kOne >> bit) != 0 ? more : result;
  }
  return result << (x >> 32);
}

Pareto::Pareto(double tail, Duration median) {
  if (median <= Duration{}) return;
  const double limited = std::clamp(tail, 1.0, 50.0);
  const std::uint64_t ratio = static_cast<std::uint64_t>(std::llround(limited * 0x1p32));
  inverse_shape_ = (fixed_log2(ratio) << 24) / (fixed_log2(50 * kOne) >> 8);
  const auto median_ns = static_cast<std::uint64_t>(std::min(median, kLongest).count());
  least_ns_ = (median_ns << 24) / (fixed_exp2(inverse_shape_) >> 8);
}

Duration Pareto::draw(Random& random) const {
  if (least_ns_ == 0) return Duration{};
  // log2(1 / U) = 64 - log2(u), u uniform in [1, 2^64).
  const std::uint64_t u = random.next() | 1;
  const int zeros = std::countl_zero(u);
  const std::uint64_t mantissa = u << zeros >> 31;  // in [1, 2), units of 2^-32
  const std::uint64_t log = (static_cast<std::uint64_t>(zeros + 1) << 32) - fixed_log2(mantissa);
  const std::uint64_t exponent = times(inverse_shape_, log);
  if (exponent >= 31 * kOne) return kLongest;
  const std::uint64_t factor = fixed_exp2(exponent) >> 12;  // units of 2^-20
  const auto longest = static_cast<std::uint64_t>(kLongest.count());
  if (least_ns_ > (longest << 20) / factor) return kLongest;
  return Duration(static_cast<std::int64_t>(least_ns_ * factor >> 20));
}

}  // namespace tarpon
