// float16 and bfloat16 in every compiled copy of the reduction kernels: all 65,536 values, the
// rounding of partial results, odd sizes and unaligned pointers, against plain arithmetic.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "collectives/engine/kernels/reduce.h"
#include "tools/reference/reference.h"

namespace tarpon::half_precision_test {
namespace {

constexpr std::size_t kLongest = 70;
constexpr std::size_t kOddOffset = 1;
constexpr std::byte kGuard{0xa5};

template <typename T>
class HalfPrecisionTest : public testing::Test {
 protected:
  /// Calls `body(kernels)` for every copy.
  template <typename Body>
  void for_all(ReduceOp function, Body body) {
    for (const ReduceVariant& variant : reduce_variants()) {
      SCOPED_TRACE(variant.instruction_set);
      body(variant.kernels(data_type_of<T>(), function));
      if (testing::Test::HasFailure()) return;
    }
  }

  static std::vector<T> all_values() {
    std::vector<T> values;
    for (unsigned bits = 0; bits < 65'536; ++bits) {
      values.push_back(T::from_bits(static_cast<std::uint16_t>(bits)));
    }
    return values;
  }

  /// Every second one is small, so that products stay finite.
  static std::vector<T> values(std::uint64_t seed, std::size_t count) {
    std::mt19937_64 random(seed);
    std::vector<T> result;
    for (std::size_t i = 0; i < count; ++i) {
      const double number = static_cast<double>(random() % 4001) - 2000;
      result.emplace_back(number / (i % 2 == 0 ? 1 : 1000));
    }
    return result;
  }
};

using Halves = testing::Types<Float16, Bfloat16>;
TYPED_TEST_SUITE(HalfPrecisionTest, Halves);

/// An array behind an odd address, with guards around.
template <typename T>
class Unaligned {
 public:
  explicit Unaligned(std::size_t elements)
      : elements_(elements), bytes_(2 * kOddOffset + elements * sizeof(T), kGuard) {}
  explicit Unaligned(const std::vector<T>& values) : Unaligned(values.size()) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  std::byte* data() { return bytes_.data() + kOddOffset; }
  std::vector<T> values() const {
    std::vector<T> result(elements_);
    if (elements_ > 0) {
      std::memcpy(result.data(), bytes_.data() + kOddOffset, elements_ * sizeof(T));
    }
    return result;
  }
  bool guarded() const { return bytes_.front() == kGuard && bytes_.back() == kGuard; }

 private:
  std::size_t elements_;
  std::vector<std::byte> bytes_;
};

TYPED_TEST(HalfPrecisionTest, first__widens_every_value) {
  using T = TypeParam;
  const std::vector<T> values = this->all_values();
  const std::vector<T> ones(values.size(), T{1});
  this->for_all(ReduceOp::prod, [&](const ReduceKernels& kernels) {
    std::vector<float> wide(values.size());
    kernels.first.combine(wide.data(), values.data(), ones.data(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = values[i];
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(expected))
            << i;
      }
    }
  });
}

TYPED_TEST(HalfPrecisionTest, scale_partial__rounds_to_nearest_ties_to_even) {
  using T = TypeParam;
  // Every finite value, the middle to the next one, and its neighbours.
  std::vector<float> wide;
  for (const T value : this->all_values()) {
    const auto next = T::from_bits(static_cast<std::uint16_t>(value.bits() + 1));
    wide.push_back(value);
    const auto middle = static_cast<float>(
        (static_cast<double>(float{value}) + static_cast<double>(float{next})) / 2);
    for (const float around :
         {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, middle * 2)}) {
      wide.push_back(around);
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 100'000; ++i) {
    wide.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  this->for_all(ReduceOp::sum, [&](const ReduceKernels& kernels) {
    std::vector<T> rounded(wide.size());
    kernels.scale_partial(rounded.data(), wide.data(), wide.size(), 1, 1);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      if (std::isnan(wide[i])) {
        ASSERT_TRUE(std::isnan(float{rounded[i]})) << i;
      } else {
        ASSERT_EQ(rounded[i].bits(), T(wide[i]).bits()) << wide[i];
      }
    }
  });
}

TYPED_TEST(HalfPrecisionTest, sums_and_products__of_three_are_rounded_once) {
  using T = TypeParam;
  for (const ReduceOp function : {ReduceOp::sum, ReduceOp::avg, ReduceOp::prod}) {
    for (std::size_t count = 0; count <= kLongest; ++count) {
      SCOPED_TRACE(std::string(name(function)) + " of " + std::to_string(count));
      const std::vector<std::vector<T>> inputs = {this->values(1, count), this->values(2, count),
                                                  this->values(3, count)};
      this->for_all(function, [&](const ReduceKernels& kernels) {
        Unaligned<T> a(inputs[0]), b(inputs[1]), c(inputs[2]), out(count);
        Unaligned<float> partial(count);
        kernels.first.combine(partial.data(), a.data(), b.data(), count);
        const std::vector<float> two = partial.values();
        for (std::size_t i = 0; i < count; ++i) {
          EXPECT_EQ(two[i], combine(function, float{inputs[0][i]}, float{inputs[1][i]}));
        }
        if (function == ReduceOp::avg) {
          kernels.last.combine_scaled(out.data(), partial.data(), c.data(), count, 3);
        } else {
          kernels.last.combine(out.data(), partial.data(), c.data(), count);
        }
        for (std::size_t i = 0; i < count; ++i) {
          const T expected =
              reduce_over<T>(7, 3, 0, function, [&](Rank rank) { return inputs[rank][i]; });
          EXPECT_EQ(out.values()[i].bits(), expected.bits()) << i;
        }
        EXPECT_TRUE(out.guarded() && partial.guarded() && a.guarded());
        kernels.next.combine(partial.data(), partial.data(), c.data(), count);
        for (std::size_t i = 0; i < count; ++i) {
          EXPECT_EQ(partial.values()[i], combine(function, two[i], float{inputs[2][i]}));
        }
      });
    }
  }
}

TYPED_TEST(HalfPrecisionTest, only__of_two_in_place) {
  using T = TypeParam;
  for (const ReduceOp function : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
    for (std::size_t count = 0; count <= kLongest; ++count) {
      const std::vector<T> first = this->values(4, count), second = this->values(5, count);
      this->for_all(function, [&](const ReduceKernels& kernels) {
        Unaligned<T> a(first), b(second);
        kernels.only.combine(a.data(), a.data(), b.data(), count);
        for (std::size_t i = 0; i < count; ++i) {
          const T expected(combine(function, float{first[i]}, float{second[i]}));
          EXPECT_EQ(a.values()[i].bits(), expected.bits()) << name(function) << " " << i;
        }
        EXPECT_TRUE(a.guarded());
      });
    }
  }
}

TYPED_TEST(HalfPrecisionTest, scale__multiplies_by_the_ratio_and_divides_by_numerator_one) {
  using T = TypeParam;
  const std::vector<T> values = this->values(8, kLongest);
  this->for_all(ReduceOp::sum, [&](const ReduceKernels& kernels) {
    std::vector<T> out(kLongest);
    kernels.scale(out.data(), values.data(), kLongest, 7, 3);
    const volatile float ratio = 7.0f / 3.0f;
    for (std::size_t i = 0; i < kLongest; ++i) {
      EXPECT_EQ(out[i].bits(), T(float{values[i]} * ratio).bits()) << i;
    }
    out = values;
    kernels.scale(out.data(), out.data(), kLongest, 1, 7);
    for (std::size_t i = 0; i < kLongest; ++i) {
      EXPECT_EQ(out[i].bits(), T(float{values[i]} / 7.0f).bits()) << i;
    }
  });
}

TYPED_TEST(HalfPrecisionTest, finite__knows_every_value) {
  using T = TypeParam;
  this->for_all(ReduceOp::sum, [&](const ReduceKernels& kernels) {
    std::vector<T> values(37);
    for (const T value : this->all_values()) {
      values[value.bits() % values.size()] = value;
      ASSERT_EQ(kernels.finite(values.data(), values.size()), std::isfinite(float{value}))
          << value.bits();
      values[value.bits() % values.size()] = T{};
    }
  });
}

TYPED_TEST(HalfPrecisionTest, needs_partials__for_sums_and_products_alone) {
  constexpr DataType type = data_type_of<TypeParam>();
  for (const ReduceOp function : {ReduceOp::sum, ReduceOp::avg, ReduceOp::prod}) {
    EXPECT_TRUE(needs_partials(type, function));
  }
  for (const ReduceOp function : {ReduceOp::min, ReduceOp::max, ReduceOp::custom}) {
    EXPECT_FALSE(needs_partials(type, function));
  }
}

}  // namespace
}  // namespace tarpon::half_precision_test
