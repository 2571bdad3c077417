// float16 and bfloat16 as values of C++, in plain arithmetic: for references and test data.
//
// Independent of the kernels. Slow: each conversion takes a few library calls.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace tarpon {

/// A sign, `kExponentBits` and `kMantissaBits` in 16 bits, laid out as IEEE formats are.
template <int kExponentBits, int kMantissaBits>
class HalfType {
 public:
  static constexpr int kMantissa = kMantissaBits;

  HalfType() = default;

  /// Rounds to the nearest value, ties to even; too large values become infinite.
  template <typename Number>
  requires std::is_arithmetic_v<Number>
  explicit HalfType(Number number) : bits_(encode(static_cast<double>(number))) {}

  static HalfType from_bits(std::uint16_t bits) {
    HalfType result;
    result.bits_ = bits;
    return result;
  }

  std::uint16_t bits() const { return bits_; }

  operator float() const {  // NOLINT(google-explicit-constructor): no value is lost
    const int mantissa = bits_ & ((1 << kMantissaBits) - 1);
    const int exponent = bits_ >> kMantissaBits & kHighestExponent;
    const float sign = (bits_ & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == kHighestExponent) {
      return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                           : sign * std::numeric_limits<float>::infinity();
    }
    const int implied = exponent == 0 ? 0 : 1 << kMantissaBits;
    return sign * std::ldexp(static_cast<float>(mantissa + implied),
                             std::max(exponent, 1) - kBias - kMantissaBits);
  }

 private:
  static constexpr int kHighestExponent = (1 << kExponentBits) - 1;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;

  static std::uint16_t encode(double number) {
    const int sign = std::signbit(number) ? 0x8000 : 0;
    const int infinity = kHighestExponent << kMantissaBits;
    if (std::isnan(number)) {
      return static_cast<std::uint16_t>(sign | infinity | 1 << (kMantissaBits - 1));
    }
    const double size = std::abs(number);
    if (std::isinf(size)) return static_cast<std::uint16_t>(sign | infinity);
    // In units of the last place. Rounding up to the next power of two carries into the exponent.
    const int exponent = size == 0 ? 1 - kBias : std::max(std::ilogb(size), 1 - kBias);
    const auto units = static_cast<int>(std::nearbyint(std::ldexp(size, kMantissaBits - exponent)));
    const int raised = ((exponent + kBias - 1) << kMantissaBits) + units;
    return static_cast<std::uint16_t>(sign | std::min(raised, infinity));
  }

  std::uint16_t bits_ = 0;
};

using Float16 = HalfType<5, 10>;
using Bfloat16 = HalfType<8, 7>;

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

template <typename T>
inline constexpr bool kIsFloat = std::is_floating_point_v<T> || kIsHalf<T>;

/// The type in which contributions of T are added.
template <typename T>
using SumOf = std::conditional_t<kIsHalf<T>, float, T>;

/// The distance from 1 to the next value.
template <typename T>
constexpr double epsilon_of() {
  if constexpr (kIsHalf<T>) {
    return 1.0 / (1 << T::kMantissa);
  } else {
    return std::numeric_limits<T>::epsilon();
  }
}

}  // namespace tarpon
