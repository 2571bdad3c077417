// Every compiled copy of the reduction kernels against a plain loop: odd sizes, unaligned pointers,
// all types and functions, bit by bit.
#include "collectives/engine/kernels/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "tools/reference/reference.h"

namespace tarpon::reduce_test {
namespace {

constexpr std::size_t kLargest = 300;
constexpr std::size_t kOddOffset = 1;
constexpr std::byte kGuard{0xa5};

template <typename T>
bool any_nan(T a, T b) {
  return a != a || b != b;
}

template <typename T>
bool negative(T value) {
  if constexpr (std::is_integral_v<T>) return false;
  return std::signbit(static_cast<double>(value));
}

/// The definition, one element at a time.
template <typename T>
T reference(ReduceOp function, T a, T b) {
  using Wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  switch (function) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    case ReduceOp::min:
      if (any_nan(a, b)) return std::numeric_limits<T>::quiet_NaN();
      return b < a || (b == a && negative(b)) ? b : a;
    case ReduceOp::max:
      if (any_nan(a, b)) return std::numeric_limits<T>::quiet_NaN();
      return b > a || (b == a && negative(a)) ? b : a;
    case ReduceOp::prod:
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
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

/// Ordinary numbers, with the awkward ones of the type in between. NaN only where `nan_at` says:
/// which of two NaN survives is the processor's choice.
template <typename T>
std::vector<T> numbers(std::uint64_t seed, std::size_t nan_at) {
  std::mt19937_64 random(seed);
  std::vector<T> values(kLargest);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_integral_v<T>) {
      values[i] = static_cast<T>(random());
      if (i % 7 == 1) values[i] = std::numeric_limits<T>::max();
      if (i % 7 == 3) values[i] = std::numeric_limits<T>::min();
    } else {
      values[i] = std::ldexp(static_cast<T>(static_cast<std::int64_t>(random())), -60);
      if (i % 11 == 2) values[i] = -T{0};
      if (i % 13 == 5) values[i] = std::numeric_limits<T>::infinity();
      if (i % 13 == 6) values[i] = std::numeric_limits<T>::denorm_min();
      if (i % 17 == nan_at) values[i] = std::numeric_limits<T>::quiet_NaN();
    }
  }
  return values;
}

/// `values` at an address that no vector type is aligned to, with guards around.
template <typename T>
class Unaligned {
 public:
  explicit Unaligned(const std::vector<T>& values, std::size_t offset = kOddOffset)
      : offset_(64 + offset), bytes_(offset_ + values.size() * sizeof(T) + 64, kGuard) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  std::byte* data() { return bytes_.data() + offset_; }

  /// Holds exactly `values`, and nothing around them was written.
  void expect(const std::vector<T>& values) const {
    const Unaligned wanted(values, offset_ - 64);
    ASSERT_EQ(bytes_.size(), wanted.bytes_.size());
    EXPECT_EQ(std::memcmp(bytes_.data(), wanted.bytes_.data(), bytes_.size()), 0);
  }

 private:
  std::size_t offset_;
  std::vector<std::byte> bytes_;
};

template <typename T>
std::vector<T> first(const std::vector<T>& values, std::size_t elements) {
  return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(elements)};
}

template <typename T>
class ReduceTest : public testing::Test {
 protected:
  const std::vector<T> a_ = numbers<T>(1, 3);
  const std::vector<T> b_ = numbers<T>(2, 8);

  static std::string label(const ReduceVariant& variant, ReduceOp function, std::size_t elements) {
    return std::string(variant.instruction_set) + " " + std::string(name(function)) + " of " +
           std::to_string(elements);
  }

  /// Calls `body(kernels, function, a, b)` for every copy, function and size.
  template <typename Body>
  void for_all(Body body) {
    for (const ReduceVariant& variant : reduce_variants()) {
      for (std::size_t op = 0; op < kReduceOps; ++op) {
        const auto function = static_cast<ReduceOp>(op);
        if (!is_defined(data_type_of<T>(), function) || function == ReduceOp::custom) continue;
        for (std::size_t elements = 0; elements <= kLargest; ++elements) {
          SCOPED_TRACE(label(variant, function, elements));
          body(variant.kernels(data_type_of<T>(), function), function, first(a_, elements),
               first(b_, elements));
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
};

using Types = testing::Types<float, double, std::int32_t, std::int64_t, std::int8_t, std::uint8_t,
                             std::int16_t, std::uint16_t, std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(ReduceTest, Types);

template <typename T>
std::vector<T> combined(ReduceOp function, const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = reference(function, a[i], b[i]);
  return result;
}

TYPED_TEST(ReduceTest, combine__into_another_buffer) {
  using T = TypeParam;
  this->for_all([](const ReduceKernels& kernels, ReduceOp function, const std::vector<T>& a,
                   const std::vector<T>& b) {
    Unaligned<T> x(a, 1), y(b, 3), out(std::vector<T>(a.size()), 2);
    kernels.only.combine(out.data(), x.data(), y.data(), a.size());
    out.expect(combined(function, a, b));
    x.expect(a);
    y.expect(b);
  });
}

TYPED_TEST(ReduceTest, combine__in_place) {
  using T = TypeParam;
  this->for_all([](const ReduceKernels& kernels, ReduceOp function, const std::vector<T>& a,
                   const std::vector<T>& b) {
    Unaligned<T> x(a, 0), y(b, 5);
    kernels.only.combine(x.data(), x.data(), y.data(), a.size());
    x.expect(combined(function, a, b));
    y.expect(b);
  });
}

TYPED_TEST(ReduceTest, combine_scaled__divides_the_sum) {
  using T = TypeParam;
  this->for_all([](const ReduceKernels& kernels, ReduceOp function, const std::vector<T>& a,
                   const std::vector<T>& b) {
    const bool adds = function == ReduceOp::sum || function == ReduceOp::avg;
    ASSERT_EQ(kernels.only.combine_scaled != nullptr, adds);
    if (!adds) return;
    std::vector<T> wanted = combined(function, a, b);
    for (T& value : wanted) value = static_cast<T>(value / T{3});
    Unaligned<T> in_place(a, 7), y(b, 1), out(std::vector<T>(a.size()), 4);
    kernels.only.combine_scaled(out.data(), in_place.data(), y.data(), a.size(), 3);
    out.expect(wanted);
    kernels.only.combine_scaled(in_place.data(), in_place.data(), y.data(), a.size(), 3);
    in_place.expect(wanted);
  });
}

TYPED_TEST(ReduceTest, scale__multiplies_by_the_rounded_ratio) {
  using T = TypeParam;
  this->for_all(
      [](const ReduceKernels& kernels, ReduceOp, const std::vector<T>& a, const std::vector<T>&) {
        std::vector<T> wanted = a;
        for (T& value : wanted) {
          if constexpr (std::is_integral_v<T>) {
            value = static_cast<T>(reference(ReduceOp::prod, value, T{7}) / T{3});
          } else {
            value = value * (T{7} / T{3});
          }
        }
        Unaligned<T> x(a, 3);
        kernels.scale(x.data(), x.data(), a.size(), 7, 3);
        x.expect(wanted);
      });
}

TYPED_TEST(ReduceTest, scale__numerator_one_divides) {
  using T = TypeParam;
  this->for_all(
      [](const ReduceKernels& kernels, ReduceOp, const std::vector<T>& a, const std::vector<T>&) {
        std::vector<T> wanted = a;
        for (T& value : wanted) value = static_cast<T>(value / T{7});
        Unaligned<T> x(a, 1), out(std::vector<T>(a.size()), 2);
        kernels.scale(out.data(), x.data(), a.size(), 1, 7);
        out.expect(wanted);
        x.expect(a);
        kernels.scale(x.data(), x.data(), a.size(), 1, 7);
        x.expect(wanted);
      });
}

TYPED_TEST(ReduceTest, partial_results_are_elements) {
  using T = TypeParam;
  for (const ReduceVariant& variant : reduce_variants()) {
    const ReduceKernels& kernels = variant.kernels(data_type_of<T>(), ReduceOp::avg);
    for (const ReduceStep* step : {&kernels.first, &kernels.next, &kernels.last}) {
      EXPECT_EQ(step->combine, kernels.only.combine);
      EXPECT_EQ(step->combine_scaled, kernels.only.combine_scaled);
    }
    EXPECT_EQ(kernels.scale_partial, kernels.scale);
  }
  EXPECT_FALSE(needs_partials(data_type_of<T>(), ReduceOp::avg));
}

TEST(ReduceKernelsTest, integers__averages_of_small_types_divide_by_more_than_they_hold) {
  const ReduceKernels& kernels = reduce_kernels(DataType::int8, ReduceOp::avg);
  const std::int8_t a[] = {-100, 100, -3}, b[] = {-27, 27, 1};
  std::int8_t out[3];
  kernels.only.combine_scaled(out, a, b, 3, 300);
  EXPECT_THAT(out, testing::ElementsAre(0, 0, 0));
  kernels.only.combine_scaled(out, a, b, 3, 2);
  EXPECT_THAT(out, testing::ElementsAre(-63, 63, -1)) << "truncated toward zero";
}

TEST(ReduceKernelsTest, scale__of_all_contributions_gives_the_bits_of_combine_scaled) {
  const std::vector<float> a = numbers<float>(3, 0), b = numbers<float>(4, 0);
  const ReduceKernels& kernels = reduce_kernels(DataType::float32, ReduceOp::avg);
  std::vector<float> exact(a.size()), bounded(a.size());
  kernels.only.combine_scaled(exact.data(), a.data(), b.data(), a.size(), 7);
  kernels.only.combine(bounded.data(), a.data(), b.data(), a.size());
  kernels.scale(bounded.data(), bounded.data(), bounded.size(), 1, 7);
  EXPECT_EQ(std::memcmp(exact.data(), bounded.data(), exact.size() * sizeof(float)), 0);
}

/// All pairs of awkward numbers, at all places of vectors. `T` may be a type of bits.
template <typename T>
void expect_order(DataType type, const std::vector<T>& awkward, T quiet_nan, auto is_nan,
                  auto is_below) {
  for (const ReduceVariant& variant : reduce_variants()) {
    for (const ReduceOp function : {ReduceOp::min, ReduceOp::max}) {
      SCOPED_TRACE(std::string(variant.instruction_set) + " " + std::string(name(function)));
      std::vector<T> a, b, wanted;
      for (const T x : awkward) {
        for (const T y : awkward) {
          const bool takes_x = is_below(x, y) == (function == ReduceOp::min);
          a.push_back(x);
          b.push_back(y);
          wanted.push_back(is_nan(x) || is_nan(y) ? quiet_nan : takes_x ? x : y);
        }
      }
      Unaligned<T> left(a, 1), right(b, 3), out(std::vector<T>(a.size()), 5);
      const auto combine = variant.kernels(type, function).only.combine;
      combine(out.data(), left.data(), right.data(), a.size());
      out.expect(wanted);
      combine(left.data(), left.data(), right.data(), a.size());
      left.expect(wanted);
    }
  }
}

/// The bits of a float type: its zeros, infinities, largest and smallest numbers, one, and NaN of
/// both signs, quiet and signaling, with and without payload.
template <typename Bits>
void expect_order_of(DataType type, int mantissa_bits) {
  const auto sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const auto infinity = static_cast<Bits>(sign - (Bits{1} << mantissa_bits));
  const auto quiet = static_cast<Bits>(infinity | Bits{1} << (mantissa_bits - 1));
  std::vector<Bits> awkward;
  for (const Bits one : {Bits{0}, Bits{1}, Bits(infinity / 2), Bits(infinity - 1), infinity,
                         Bits(infinity + 1), quiet, Bits(quiet + 5), Bits(sign - 1)}) {
    awkward.push_back(one);
    awkward.push_back(static_cast<Bits>(one | sign));
  }
  const auto is_nan = [=](Bits x) { return static_cast<Bits>(x & ~sign) > infinity; };
  const auto is_below = [=](Bits x, Bits y) {
    if ((x & sign) != (y & sign)) return (x & sign) != 0;
    return (x & sign) != 0 ? x > y : x < y;
  };
  expect_order(type, awkward, quiet, is_nan, is_below);
}

TEST(ReduceKernelsTest, min_and_max__nan_stays_and_zeros_have_an_order) {
  expect_order_of<std::uint32_t>(DataType::float32, 23);
  expect_order_of<std::uint64_t>(DataType::float64, 52);
  expect_order_of<std::uint16_t>(DataType::float16, 10);
  expect_order_of<std::uint16_t>(DataType::bfloat16, 7);
}

TEST(ReduceKernelsTest, finite__finds_one_element_of_any_length) {
  const auto check = [](auto zero) {
    using T = decltype(zero);
    using Limits = std::numeric_limits<T>;
    for (const ReduceVariant& variant : reduce_variants()) {
      const auto finite = variant.kernels(data_type_of<T>(), ReduceOp::sum).finite;
      EXPECT_TRUE(finite(nullptr, 0));
      for (const std::size_t length : {1u, 7u, 64u, 299u}) {
        std::vector<std::byte> bytes(length * sizeof(T) + kOddOffset);
        const auto put = [&](std::size_t i, T value) {
          std::memcpy(bytes.data() + kOddOffset + i * sizeof(T), &value, sizeof value);
        };
        for (std::size_t i = 0; i < length; ++i)
          put(i, i % 2 == 0 ? Limits::max() : -Limits::denorm_min());
        EXPECT_TRUE(finite(bytes.data() + kOddOffset, length)) << variant.instruction_set;
        for (std::size_t i = 0; i < length; ++i) {
          for (const T bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
                              Limits::signaling_NaN()}) {
            put(i, bad);
            EXPECT_FALSE(finite(bytes.data() + kOddOffset, length))
                << variant.instruction_set << " element " << i << " of " << length;
          }
          put(i, T{0});
        }
        EXPECT_TRUE(finite(bytes.data() + kOddOffset, length));
      }
    }
  };
  check(float{});
  check(double{});
  EXPECT_EQ(reduce_kernels(DataType::int32, ReduceOp::sum).finite, nullptr);
}

TEST(ReduceKernelsTest, reduce_kernels__takes_the_widest_variant) {
  ASSERT_FALSE(reduce_variants().empty());
  EXPECT_EQ(reduce_variants().front().instruction_set, "baseline");
  EXPECT_EQ(&reduce_kernels(DataType::int64, ReduceOp::max),
            &reduce_variants().back().kernels(DataType::int64, ReduceOp::max));
}

}  // namespace
}  // namespace tarpon::reduce_test
