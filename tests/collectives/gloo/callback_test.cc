// Which reduction a callback computes, told by its results alone.
#include "collectives/gloo/callback.h"

#include <gloo/math.h>
#include <gloo/types.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>

#include "collectives/tarpon.h"

namespace tarpon::gloo_shim {
namespace {

template <typename T, typename Op>
Combine elementwise(Op op) {
  return [op](void* out, const void* a, const void* b, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      static_cast<T*>(out)[i] =
          static_cast<T>(op(static_cast<const T*>(a)[i], static_cast<const T*>(b)[i]));
    }
  };
}

/// Of Gloo's overloads the one that is a callback.
using Function = void (*)(void*, const void*, const void*, std::size_t);

/// Its functions as Gloo itself has them.
template <typename T>
void expect_arithmetic(std::uint32_t type, std::uint32_t signed_type) {
  SCOPED_TRACE(type);
  const auto is = [](std::uint32_t type_number, std::uint32_t function) {
    return std::optional(Reduction{type_number, function});
  };
  // Modulo 2^n, and bit by bit, signed and unsigned integers are alike.
  EXPECT_EQ(classify(Function(&::gloo::sum<T>), sizeof(T)), is(signed_type, TARPON_SUM));
  EXPECT_EQ(classify(Function(&::gloo::product<T>), sizeof(T)), is(signed_type, TARPON_PROD));
  EXPECT_EQ(classify(Function(&::gloo::min<T>), sizeof(T)), is(type, TARPON_MIN));
  EXPECT_EQ(classify(Function(&::gloo::max<T>), sizeof(T)), is(type, TARPON_MAX));
}

template <typename T>
void expect_bitwise(std::uint32_t type) {
  SCOPED_TRACE(type);
  const auto found = [](auto op) { return classify(elementwise<T>(op), sizeof(T)); };
  EXPECT_EQ(found([](T a, T b) { return a & b; }), (Reduction{type, TARPON_BAND}));
  EXPECT_EQ(found([](T a, T b) { return a | b; }), (Reduction{type, TARPON_BOR}));
  EXPECT_EQ(found([](T a, T b) { return a ^ b; }), (Reduction{type, TARPON_BXOR}));
}

TEST(GlooCallback, every_type_and_function) {
  expect_arithmetic<float>(TARPON_FLOAT32, TARPON_FLOAT32);
  expect_arithmetic<double>(TARPON_FLOAT64, TARPON_FLOAT64);
  expect_arithmetic<::gloo::float16>(TARPON_FLOAT16, TARPON_FLOAT16);
  expect_arithmetic<std::int8_t>(TARPON_INT8, TARPON_INT8);
  expect_arithmetic<std::uint8_t>(TARPON_UINT8, TARPON_INT8);
  expect_arithmetic<std::int16_t>(TARPON_INT16, TARPON_INT16);
  expect_arithmetic<std::uint16_t>(TARPON_UINT16, TARPON_INT16);
  expect_arithmetic<std::int32_t>(TARPON_INT32, TARPON_INT32);
  expect_arithmetic<std::uint32_t>(TARPON_UINT32, TARPON_INT32);
  expect_arithmetic<std::int64_t>(TARPON_INT64, TARPON_INT64);
  expect_arithmetic<std::uint64_t>(TARPON_UINT64, TARPON_INT64);
  expect_bitwise<std::int8_t>(TARPON_INT8);
  expect_bitwise<std::uint16_t>(TARPON_INT16);
  expect_bitwise<std::uint32_t>(TARPON_INT32);
  expect_bitwise<std::int64_t>(TARPON_INT64);
}

float widen(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

std::uint16_t narrow(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

TEST(GlooCallback, bfloat16) {
  const auto found = [](auto op) {
    return classify(elementwise<std::uint16_t>([op](std::uint16_t a, std::uint16_t b) {
                      return narrow(op(widen(a), widen(b)));
                    }),
                    2);
  };
  EXPECT_EQ(found([](float a, float b) { return a + b; }),
            (Reduction{TARPON_BFLOAT16, TARPON_SUM}));
  EXPECT_EQ(found([](float a, float b) { return a * b; }),
            (Reduction{TARPON_BFLOAT16, TARPON_PROD}));
  EXPECT_EQ(found([](float a, float b) { return std::min(a, b); }),
            (Reduction{TARPON_BFLOAT16, TARPON_MIN}));
  EXPECT_EQ(found([](float a, float b) { return std::max(a, b); }),
            (Reduction{TARPON_BFLOAT16, TARPON_MAX}));
}

/// Gloo's own min and max keep a NaN in the first operand alone.
TEST(GlooCallback, min_and_max__whatever_they_do_with_nan) {
  const auto found = [](auto nan_or, auto op) {
    return classify(elementwise<::gloo::float16>([=](::gloo::float16 a, ::gloo::float16 b) {
                      const float x = ::gloo::cpu_half2float(a), y = ::gloo::cpu_half2float(b);
                      const float one = std::isnan(x) || std::isnan(y) ? nan_or(x, y) : op(x, y);
                      return ::gloo::cpu_float2half_rn(one);
                    }),
                    2);
  };
  const auto keeps = [](float a, float b) { return a + b; };
  const auto passes = [](float a, float b) { return std::isnan(a) ? b : a; };
  const auto second = [](float, float b) { return b; };
  const auto min = [](float a, float b) { return std::min(a, b); };
  const auto max = [](float a, float b) { return std::max(a, b); };
  const Reduction minimum{TARPON_FLOAT16, TARPON_MIN}, maximum{TARPON_FLOAT16, TARPON_MAX};
  EXPECT_EQ(found(keeps, min), minimum);
  EXPECT_EQ(found(keeps, max), maximum);
  EXPECT_EQ(found(passes, min), minimum);
  EXPECT_EQ(found(passes, max), maximum);
  EXPECT_EQ(found(second, min), minimum);
  EXPECT_EQ(found(second, max), maximum);
}

TEST(GlooCallback, what_is_none_of_them__is_not_taken_for_one) {
  const auto found = [](auto op) { return classify(elementwise<float>(op), 4); };
  EXPECT_EQ(found([](float a, float b) { return a - b; }), std::nullopt);
  EXPECT_EQ(found([](float a, float b) { return (a + b) / 2; }), std::nullopt);
  EXPECT_EQ(found([](float a, float) { return a; }), std::nullopt);
  EXPECT_EQ(found([](float a, float b) { return a + b + 1e-6f; }), std::nullopt);
  EXPECT_EQ(found([](float a, float b) { return std::abs(a) < std::abs(b) ? b : a; }),
            std::nullopt);
  EXPECT_EQ(classify(elementwise<std::int32_t>([](auto a, auto b) { return a + b + 1; }), 4),
            std::nullopt);
  EXPECT_EQ(classify([](void*, const void*, const void*, std::size_t) {}, 4), std::nullopt);
  EXPECT_EQ(classify(Combine(), 4), std::nullopt);
  EXPECT_EQ(classify([](void*, const void*, const void*, std::size_t) { FAIL(); }, 12),
            std::nullopt);
}

/// Sums but for large values, infinity or NaN.
template <typename T>
void expect_no_sum(float limit) {
  const auto found = [](auto op) { return classify(elementwise<T>(op), sizeof(T)); };
  const auto is_nan = [](T x) { return x != x; };
  const auto is_infinite = [](T x) { return std::isinf(x); };
  EXPECT_EQ(found([=](T a, T b) { return is_nan(a) ? b : is_nan(b) ? a : a + b; }), std::nullopt);
  EXPECT_EQ(found([=](T a, T b) { return is_nan(a + b) ? 0 : a + b; }), std::nullopt);
  EXPECT_EQ(found([=](T a, T b) { return is_infinite(a + b) ? 0 : a + b; }), std::nullopt);
  EXPECT_EQ(found([=](T a, T b) { return std::clamp<T>(a + b, -limit, limit); }), std::nullopt);
  EXPECT_EQ(found([=](T a, T b) { return std::abs(a + b) < 1 / limit ? 0 : a + b; }), std::nullopt);
}

TEST(GlooCallback, what_differs_for_large_values_infinity_or_nan_alone__is_no_sum) {
  expect_no_sum<float>(1e3f);
  expect_no_sum<float>(1e30f);
  expect_no_sum<double>(1e3f);
  expect_no_sum<double>(1e30f);
  const auto half = [](auto op) {
    return classify(elementwise<::gloo::float16>([=](::gloo::float16 a, ::gloo::float16 b) {
                      return ::gloo::cpu_float2half_rn(
                          op(::gloo::cpu_half2float(a), ::gloo::cpu_half2float(b)));
                    }),
                    2);
  };
  EXPECT_EQ(half([](float a, float b) { return a + b; }), (Reduction{TARPON_FLOAT16, TARPON_SUM}));
  EXPECT_EQ(half([](float a, float b) { return std::clamp(a + b, -1e3f, 1e3f); }), std::nullopt);
  EXPECT_EQ(half([](float a, float b) { return std::isnan(a) ? b : a + b; }), std::nullopt);
  const auto bfloat = [](auto op) {
    return classify(elementwise<std::uint16_t>([op](std::uint16_t a, std::uint16_t b) {
                      return narrow(op(widen(a), widen(b)));
                    }),
                    2);
  };
  EXPECT_EQ(bfloat([](float a, float b) { return std::clamp(a + b, -1e3f, 1e3f); }), std::nullopt);
  EXPECT_EQ(bfloat([](float a, float b) { return std::isnan(a) ? b : a + b; }), std::nullopt);
}

/// As processors do that flush subnormal results to 0.
TEST(GlooCallback, subnormal_results__may_be_0) {
  EXPECT_EQ(classify(elementwise<float>([](float a, float b) {
                       return std::fpclassify(a * b) == FP_SUBNORMAL ? 0 : a * b;
                     }),
                     4),
            (Reduction{TARPON_FLOAT32, TARPON_PROD}));
}

int throwing_calls = 0;

void positive_sum(void* out, const void* a, const void* b, std::size_t n) {
  ++throwing_calls;
  for (std::size_t i = 0; i < n; ++i) {
    if (static_cast<const float*>(a)[i] < 0) throw std::domain_error("negative");
  }
  ::gloo::sum<float>(out, a, b, n);
}

TEST(GlooCallback, classify_function__what_throws_is_none_of_them) {
  EXPECT_EQ(classify_function(Combine(&positive_sum), 4), std::nullopt);
  EXPECT_EQ(classify_function(Combine(&positive_sum), 4), std::nullopt);
  EXPECT_EQ(throwing_calls, 1);
}

bool short_of_memory = true;

void sum_without_memory(void* out, const void* a, const void* b, std::size_t n) {
  if (short_of_memory) throw std::bad_alloc();
  ::gloo::sum<float>(out, a, b, n);
}

TEST(GlooCallback, classify_function__forgets_an_answer_for_which_memory_was_short) {
  EXPECT_THROW(classify_function(Combine(&sum_without_memory), 4), std::bad_alloc);
  short_of_memory = false;
  EXPECT_EQ(classify_function(Combine(&sum_without_memory), 4),
            (Reduction{TARPON_FLOAT32, TARPON_SUM}));
}

int calls = 0;

void counted_sum(void* out, const void* a, const void* b, std::size_t n) {
  ++calls;
  ::gloo::sum<float>(out, a, b, n);
}

TEST(GlooCallback, classify_function__calls_a_function_once_and_no_lambda) {
  const Reduction sum{TARPON_FLOAT32, TARPON_SUM};
  EXPECT_EQ(classify_function(Combine(&counted_sum), 4), sum);
  const int once = calls;
  EXPECT_GT(once, 0);
  EXPECT_EQ(classify_function(Combine(&counted_sum), 4), sum);
  EXPECT_EQ(calls, once);
  EXPECT_EQ(classify_function(elementwise<float>([](float a, float b) {
                                ADD_FAILURE() << "a lambda may have state";
                                return a + b;
                              }),
                              4),
            std::nullopt);
}

}  // namespace
}  // namespace tarpon::gloo_shim
