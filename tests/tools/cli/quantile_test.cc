// Quantiles need samples in their tail.
#include "tools/cli/quantile.h"

#include <gtest/gtest.h>

namespace tarpon::quantile_test {
namespace {

TEST(Quantile, quantile__needs_samples_in_its_tail) {
  EXPECT_EQ(quantile({}, 0.5), std::nullopt);
  EXPECT_EQ(quantile({7}, 0.5), 7);
  EXPECT_EQ(quantile({7}, 0), 7);
  EXPECT_EQ(quantile({7}, 1), 7);
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile(std::vector<double>(99, 1), 0.99), std::nullopt);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(quantile(hundred, 0.99), 99);
  EXPECT_EQ(quantile(hundred, 0.5), 50);
}

}  // namespace
}  // namespace tarpon::quantile_test
