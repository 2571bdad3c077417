// Operands for a callback whose results tell its type and function. Floats are bit patterns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tarpon::gloo_shim {

using Bytes = std::vector<unsigned char>;

/// Operands of a callback, as bytes.
struct Probe {
  Bytes a, b;
};

/// The bits of a float type.
struct Layout {
  int bytes = 0;
  int mantissa = 0;  // bits
  int exponent = 0;  // bits

  std::uint64_t largest_exponent() const { return (std::uint64_t{1} << exponent) - 1; }
};

inline constexpr Layout kHalf{2, 10, 5}, kBFloat{2, 7, 8}, kFloat{4, 23, 8}, kDouble{8, 52, 11};

/// Makes operands of both signs, the same ones in each run.
class Operands {
 public:
  explicit Operands(const Layout& layout) : layout_(layout) {}

  std::uint64_t random() {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return state_ >> 11;
  }

  /// Appends a number whose lowest bit is set. As integers such numbers are odd: no product of
  /// theirs is 0.
  void append_number(Bytes& bytes, std::uint64_t exponent) {
    append(bytes, exponent, (random() & ((std::uint64_t{1} << layout_.mantissa) - 1)) | 1);
  }

  void append_infinity(Bytes& bytes) { append(bytes, layout_.largest_exponent(), 0); }

  void append_nan(Bytes& bytes) {
    append(bytes, layout_.largest_exponent(), std::uint64_t{1} << (layout_.mantissa - 1));
  }

 private:
  void append(Bytes& bytes, std::uint64_t exponent, std::uint64_t fraction) {
    const std::uint64_t sign = random() >> 52 & 1;
    const std::uint64_t bits =
        sign << (8 * layout_.bytes - 1) | exponent << layout_.mantissa | fraction;
    const auto* const raw = reinterpret_cast<const unsigned char*>(&bits);
    bytes.insert(bytes.end(), raw, raw + layout_.bytes);
  }

  const Layout layout_;
  std::uint64_t state_ = 0x9e3779b97f4a7c15;
};

/// Numbers near 1.
inline Probe varied_probe(const Layout& layout) {
  Probe probe;
  Operands operands(layout);
  const std::uint64_t smallest = layout.largest_exponent() / 2 - 4;
  for (int i = 0; i < 256; ++i) {
    operands.append_number(probe.a, smallest + operands.random() % 8);
    operands.append_number(probe.b, smallest + operands.random() % 8);
  }
  return probe;
}

/// Numbers of the whole range, every second pair of about the same size; infinity and NaN in one
/// operand and in both.
inline Probe wide_probe(const Layout& layout) {
  Probe probe;
  Operands operands(layout);
  const std::uint64_t exponents = layout.largest_exponent() - 1;  // from 1 on
  for (int i = 0; i < 256; ++i) {
    const std::uint64_t a = 1 + operands.random() % exponents;
    const std::uint64_t near =
        std::clamp(a - 1 + operands.random() % 3, std::uint64_t{1}, exponents);
    const std::uint64_t b = i % 2 == 0 ? near : 1 + operands.random() % exponents;
    switch (i % 16) {
      case 3:
        operands.append_infinity(probe.a);
        operands.append_number(probe.b, b);
        break;
      case 5:
        operands.append_number(probe.a, a);
        operands.append_infinity(probe.b);
        break;
      case 7:
        operands.append_infinity(probe.a);
        operands.append_infinity(probe.b);
        break;
      case 9:
        operands.append_nan(probe.a);
        operands.append_number(probe.b, b);
        break;
      case 11:
        operands.append_number(probe.a, a);
        operands.append_nan(probe.b);
        break;
      default:
        operands.append_number(probe.a, a);
        operands.append_number(probe.b, b);
    }
  }
  return probe;
}

}  // namespace tarpon::gloo_shim
