// The check of file jobs: what it lets pass, and what it must not.
#include "tools/collective/file_check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace tarpon::file_check_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <typename T>
NpyArray array(const std::vector<T>& values) {
  NpyArray out;
  out.type = sizeof(T) == 4 ? NpyType::float32 : NpyType::float64;
  out.shape = {values.size()};
  out.data.resize(values.size() * sizeof(T));
  std::memcpy(out.data.data(), values.data(), out.data.size());
  return out;
}

/// Whether `got` passes as the float32 result of one element of each rank.
bool passes(ReduceOp function, const std::vector<double>& values, double got) {
  std::vector<NpyArray> inputs;
  for (const double value : values) inputs.push_back(array<float>({static_cast<float>(value)}));
  return count_wrong(inputs, array<float>({static_cast<float>(got)}), function, Report()) == 0;
}

TEST(FileCheck, sum_and_avg__within_rounding) {
  EXPECT_TRUE(passes(ReduceOp::sum, {1, 2, 4}, 7));
  EXPECT_TRUE(passes(ReduceOp::sum, {1e8, 1, -1e8}, 0)) << "1 is lost beside 1e8";
  EXPECT_FALSE(passes(ReduceOp::sum, {1, 2, 4}, 7.0001));
  EXPECT_TRUE(passes(ReduceOp::avg, {1, 2, 4}, 7.0 / 3));
  EXPECT_FALSE(passes(ReduceOp::avg, {1, 2, 4}, 2.3334));
  EXPECT_FALSE(passes(ReduceOp::avg, {1, 2, 4}, 7));
}

TEST(FileCheck, prod__within_rounding) {
  EXPECT_TRUE(passes(ReduceOp::prod, {1.5, -2, 4}, -12));
  EXPECT_FALSE(passes(ReduceOp::prod, {1.5, -2, 4}, 12));
  EXPECT_TRUE(passes(ReduceOp::prod, {1e-30, 1e-30, 1}, 0)) << "underflow";
  EXPECT_TRUE(passes(ReduceOp::prod, {1e30, 1e30, 1e-30}, 1e30));
  EXPECT_TRUE(passes(ReduceOp::prod, {1e30, 1e30, 1e-30}, kInf)) << "overflow on the way";
}

TEST(FileCheck, min_and_max__exact) {
  EXPECT_TRUE(passes(ReduceOp::min, {3, -1, 2}, -1));
  EXPECT_FALSE(passes(ReduceOp::min, {3, -1, 2}, -1.0000001));
  EXPECT_FALSE(passes(ReduceOp::max, {1, 1.0000001, 0}, 1));
  EXPECT_TRUE(passes(ReduceOp::min, {-kInf, 1, 2}, -kInf));
  EXPECT_TRUE(passes(ReduceOp::max, {kNan, 1, 2}, kNan));
  EXPECT_TRUE(passes(ReduceOp::max, {1, 2, kNan}, kNan));
  EXPECT_FALSE(passes(ReduceOp::max, {kNan, 1, 2}, 2)) << "a NaN of any rank stays";
  EXPECT_FALSE(passes(ReduceOp::max, {0, 1, 2}, kNan));
  EXPECT_TRUE(passes(ReduceOp::min, {kNan, kNan, kNan}, kNan));
  EXPECT_FALSE(passes(ReduceOp::min, {kNan, kNan, kNan}, 0));
}

TEST(FileCheck, not_finite__where_inputs_or_overflow_put_it) {
  EXPECT_TRUE(passes(ReduceOp::sum, {kNan, 1, 2}, kNan));
  EXPECT_FALSE(passes(ReduceOp::sum, {kNan, 1, 2}, 3));
  EXPECT_FALSE(passes(ReduceOp::sum, {0, 1, 2}, kNan));
  EXPECT_TRUE(passes(ReduceOp::sum, {kInf, 1, 2}, kInf));
  EXPECT_FALSE(passes(ReduceOp::sum, {kInf, 1, 2}, -kInf));
  EXPECT_FALSE(passes(ReduceOp::sum, {kInf, 1, 2}, 3));
  EXPECT_TRUE(passes(ReduceOp::avg, {kInf, -kInf, 2}, kNan));
  EXPECT_TRUE(passes(ReduceOp::sum, {3e38, 3e38, 0}, kInf));
  EXPECT_TRUE(passes(ReduceOp::avg, {3e38, 3e38, 0}, kInf)) << "the sum overflows before it is cut";
  EXPECT_TRUE(passes(ReduceOp::avg, {3e38, 3e38, 0}, 2e38));
  EXPECT_FALSE(passes(ReduceOp::avg, {3e37, 3e37, 0}, kInf));
}

TEST(FileCheck, report__only_its_contributors_count) {
  const std::vector<NpyArray> inputs{array<double>({1, 1, 1}), array<double>({2, 2, 2}),
                                     array<double>({4, 4, 4})};
  Report report;
  report.runs = {{0, 1, 0b111}, {1, 1, 0b101}, {2, 1, 0}};
  const auto wrong = [&](double a, double b, double c, ReduceOp function) {
    return count_wrong(inputs, array<double>({a, b, c}), function, report);
  };
  EXPECT_EQ(wrong(7, 7.5, 99, ReduceOp::sum), 0u) << "5 of 2 ranks stands for 7.5 of 3";
  EXPECT_EQ(wrong(7, 5, 0, ReduceOp::sum), 1u);
  EXPECT_EQ(wrong(7, 7, 0, ReduceOp::avg), 2u);
}

}  // namespace
}  // namespace tarpon::file_check_test
