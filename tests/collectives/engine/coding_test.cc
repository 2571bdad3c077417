#include "collectives/engine/coded/coding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tarpon::coding_test {
namespace {

constexpr std::uint64_t kCount = 100'000;

/// The squared error, over that of zeros, of a bucket of which each row is lost with probability
/// `lost`.
double error_with(double lost) {
  std::mt19937 random(7);
  std::vector<float> input(kCount);
  for (float& one : input) one = static_cast<float>(std::normal_distribution<>()(random));
  FloatBufferPool buffers;
  Coding coding(codec::strided_layout(kCount, 352, 4), codec::sign_key(1, 2, 3), buffers);
  const codec::MemberRange all{0, coding.layout().all_members()};
  coding.encode(input.data(), all);
  for (std::uint64_t row = 0; row < coding.layout().rows(); ++row) {
    if (!std::bernoulli_distribution(lost)(random)) continue;
    coding.lose(row);
    coding.clear(row, 1);
  }
  EXPECT_TRUE(coding.start_decoding().empty());
  std::vector<float> output(kCount);
  coding.decode(output.data(), all);
  double error = 0, whole = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    error += std::pow(double{output[i]} - input[i], 2);
    whole += std::pow(input[i], 2);
  }
  return error / whole;
}

TEST(Coding, decode__error_is_that_of_the_unbiased_estimate) {
  EXPECT_LT(error_with(0), 1e-10);
  EXPECT_NEAR(error_with(0.1), 1 / 9.0, 0.05);  // of some 70 rows a few more or less are lost
  EXPECT_NEAR(error_with(0.4), 2 / 3.0, 0.2);
}

TEST(Coding, decode__costs_no_more_than_zeros_however_much_is_lost) {
  for (const double lost : {0.6, 0.8, 0.95}) {
    SCOPED_TRACE(lost);
    EXPECT_NEAR(error_with(lost), 1, 0.1);
  }
}

}  // namespace
}  // namespace tarpon::coding_test
