// What a lost row costs: its share of the error, of all elements alike, without bias.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "codec/hadamard.h"

namespace tarpon::codec {
namespace {

constexpr std::uint32_t kRanks = 4;
constexpr std::uint64_t kCount = 200'000;

/// A gradient whose layers differ by orders of magnitude.
std::vector<float> layered() {
  std::mt19937 random(3);
  std::vector<float> result(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double scale = std::pow(10.0, -static_cast<double>(i * 7 / kCount % 4));
    result[i] = static_cast<float>(scale * std::normal_distribution<>()(random));
  }
  return result;
}

struct Lossy {
  std::vector<float> out;
  double share = 0;  // of the rows that were lost
};

/// `input` through a stage 2 that loses the rows of which lost(row) is true.
template <typename Lost>
Lossy through(const std::vector<float>& input, SignKey key, Lost lost) {
  const CodedLayout layout = strided_layout(input.size(), 352, kRanks);
  std::vector<float> coded(layout.room());
  EXPECT_TRUE(encode(layout, key, input, coded));
  std::vector<std::uint32_t> left(layout.groups, layout.block);
  std::uint64_t rows = 0;
  for (std::uint64_t row = 0; row < layout.rows(); ++row) {
    if (!lost(row, layout.rows())) continue;
    ++rows;
    left[layout.group_of(row)] -= layout.coefficients_in(row);
    std::fill_n(coded.begin() + static_cast<std::ptrdiff_t>(row * layout.row_pitch()),
                layout.row_elements(), 0.0f);
  }
  std::vector<float> gains(layout.groups);
  for (std::uint32_t group = 0; group < layout.groups; ++group) {
    gains[group] = static_cast<float>(layout.block) / static_cast<float>(left[group]);
  }
  Lossy result{std::vector<float>(input.size()),
               static_cast<double>(rows) / static_cast<double>(layout.rows())};
  decode(layout, key, coded, gains, result.out);
  return result;
}

double squared_error(const std::vector<float>& got, const std::vector<float>& expected,
                     std::uint64_t first, std::uint64_t count) {
  double error = 0, energy = 0;
  for (std::uint64_t i = first; i < first + count; ++i) {
    error += std::pow(double{got[i]} - double{expected[i]}, 2);
    energy += std::pow(double{expected[i]}, 2);
  }
  return error / energy;
}

TEST(Loss, costs_its_share_whatever_its_pattern) {
  const std::vector<float> input = layered();
  std::mt19937 random(5);
  const auto tail = [](std::uint64_t row, std::uint64_t rows) { return row >= rows - rows / 20; };
  const auto owner = [](std::uint64_t row, std::uint64_t) { return row % kRanks == 2; };
  const auto any = [&](std::uint64_t, std::uint64_t) { return random() % 20 == 0; };
  const auto cost = [&](SignKey key, auto lost) {
    const Lossy result = through(input, key, lost);
    return squared_error(result.out, input, 0, kCount) / (result.share / (1 - result.share));
  };
  for (std::uint32_t operation = 0; operation < 10; ++operation) {
    const SignKey key = sign_key(1, 0, operation);
    EXPECT_NEAR(cost(key, tail), 1, 0.15);
    EXPECT_NEAR(cost(key, owner), 1, 0.15);
    EXPECT_NEAR(cost(key, any), 1, 0.15);
  }
}

/// The error of a block is spread over its elements: without the codec the tail would be lost
/// whole.
TEST(Loss, no_part_of_the_bucket_loses_much_more_than_another) {
  std::mt19937 random(4);
  std::vector<float> input(kCount);
  for (float& value : input) value = std::normal_distribution<float>()(random);
  const Lossy result = through(input, sign_key(1, 0, 0), [](std::uint64_t row, std::uint64_t rows) {
    return row >= rows - rows / 20;
  });
  constexpr std::uint64_t kPart = 1000;
  for (std::uint64_t first = 0; first + kPart <= kCount; first += kPart) {
    EXPECT_LT(squared_error(result.out, input, first, kPart), 2 * result.share) << first;
  }
}

TEST(Loss, leaves_no_bias) {
  const std::vector<float> input = layered();
  constexpr std::uint32_t kOperations = 400;
  std::vector<double> mean(kCount);
  double one = 0;
  for (std::uint32_t operation = 0; operation < kOperations; ++operation) {
    const Lossy result =
        through(input, sign_key(9, 0, operation),
                [](std::uint64_t row, std::uint64_t rows) { return row >= rows - rows / 10; });
    one = squared_error(result.out, input, 0, kCount);
    for (std::uint64_t i = 0; i < kCount; ++i) mean[i] += double{result.out[i]} / kOperations;
  }
  const std::vector<float> averaged(mean.begin(), mean.end());
  // Independent errors average out as 1 / operations; a bias would stay.
  EXPECT_LT(squared_error(averaged, input, 0, kCount), 1.3 * one / kOperations);
}

}  // namespace
}  // namespace tarpon::codec
