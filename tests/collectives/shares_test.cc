// Shares of a bucket: rounding, limits, and what a hash tells.
#include "collectives/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

namespace tarpon::shares_test {
namespace {

using testing::ElementsAre;

std::vector<std::uint64_t> divided(const Shares& shares, std::uint64_t units) {
  const auto all = shares.divide(units);
  return {all.begin(), all.begin() + shares.ranks()};
}

TEST(SharesTest, parts__largest_remainder_and_ties_to_the_lower_rank) {
  const Shares thirds(std::vector<double>{1, 1, 1});
  EXPECT_EQ(thirds.part(0), 21846u);
  EXPECT_EQ(thirds.part(1), 21845u);
  EXPECT_EQ(thirds.part(2), 21845u);
  EXPECT_THAT(divided(thirds, 10), ElementsAre(4, 3, 3));
  EXPECT_THAT(divided(Shares(std::vector<double>{0, 5, 0}), 7), ElementsAre(0, 7, 0));
}

TEST(SharesTest, parts__add_up_for_any_weights_and_units) {
  for (std::size_t ranks = 1; ranks <= Shares::kMostRanks; ++ranks) {
    std::vector<double> weights;
    for (std::size_t i = 0; i < ranks; ++i)
      weights.push_back(std::sqrt(static_cast<double>(i + 1)));
    const Shares shares(weights);
    ASSERT_TRUE(shares.valid());
    std::uint32_t sum = 0;
    for (Rank rank = 0; rank < ranks; ++rank) sum += shares.part(rank);
    EXPECT_EQ(sum, Shares::kWhole);
    for (const std::uint64_t units :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{1} << 56}) {
      const auto owned = divided(shares, units);
      EXPECT_EQ(std::accumulate(owned.begin(), owned.end(), std::uint64_t{0}), units);
      EXPECT_TRUE(std::is_sorted(owned.begin(), owned.end()) || units < 2 * ranks);
    }
  }
}

/// The largest time of a rank, in buckets over a link of speed 1.
double time_of(const Shares& shares, const std::vector<double>& speeds) {
  double slowest = 0;
  for (Rank rank = 0; rank < speeds.size(); ++rank) {
    const double share = static_cast<double>(shares.part(rank)) / Shares::kWhole;
    slowest =
        std::max(slowest, (1 + static_cast<double>(speeds.size() - 2) * share) / speeds[rank]);
  }
  return slowest;
}

TEST(SharesTest, for_speeds__ranks_finish_together_at_the_lower_bound) {
  for (const std::vector<double>& speeds : {std::vector<double>{0.75, 1, 1, 1},
                                            {0.5, 1, 1, 1},
                                            {1, 1, 1, 1, 1, 1, 1, 0.25},
                                            {0.5, 0.6, 0.8, 0.9, 1, 1, 1, 1},
                                            {3e9, 1e9, 2e9}}) {
    const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    const double bound = std::max(2 * static_cast<double>(speeds.size() - 1) / sum,
                                  1 / *std::min_element(speeds.begin(), speeds.end()));
    const Shares shares = Shares::for_speeds(speeds);
    ASSERT_TRUE(shares.valid());
    EXPECT_LE(time_of(shares, speeds), 1.001 * bound) << testing::PrintToString(speeds);
  }
}

TEST(SharesTest, for_speeds__equal_ones_own_alike_and_slow_ones_nothing) {
  const Shares equal = Shares::for_speeds(std::vector<double>{7, 7, 7, 7});
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(equal.part(rank), Shares::kWhole / 4);
  EXPECT_EQ(Shares::for_speeds(std::vector<double>{0.4, 1, 1, 1}).part(0), 0u);
  EXPECT_EQ(Shares::for_speeds(std::vector<double>{1, 9}).part(0), Shares::kWhole / 2);
}

TEST(SharesTest, for_speeds__a_rank_that_begins_late_owns_less) {
  const std::vector<double> speeds(8, 1), early(8, 0);
  EXPECT_EQ(Shares::for_speeds(speeds, early), Shares::for_speeds(speeds));
  const auto late_by = [&speeds](double lag) {
    std::vector<double> leads(8, lag);
    leads[3] = 0;
    return Shares::for_speeds(speeds, leads);
  };
  EXPECT_EQ(late_by(5).part(3), 0u);
  EXPECT_NEAR(late_by(5).part(0), Shares::kWhole / 7, 1);
  // (T + 0.2 - 1) / 6 each for seven ranks and (T - 1) / 6 for the late one are 1: T = 1.575.
  EXPECT_NEAR(late_by(0.2).part(3), Shares::kWhole * 0.575 / 6, 2);
}

TEST(SharesTest, for_speeds__refuses_what_is_no_speed) {
  for (const std::vector<double>& speeds :
       {std::vector<double>{}, {0, 1, 1}, {1, -1, 1}, {NAN, 1, 1}, {0, 1}}) {
    EXPECT_FALSE(Shares::for_speeds(speeds).valid()) << testing::PrintToString(speeds);
  }
}

TEST(SharesTest, valid__says_what_is_no_list_of_weights) {
  const double infinite = std::numeric_limits<double>::infinity();
  const double largest = std::numeric_limits<double>::max();
  for (const std::vector<double>& weights : {std::vector<double>{},
                                             {0, 0},
                                             {1, -1},
                                             {NAN, 1},
                                             {infinite, 1},
                                             {largest, largest},
                                             std::vector<double>(65, 1.0)}) {
    EXPECT_FALSE(Shares(weights).valid());
    EXPECT_FALSE(Shares(weights).even());
  }
  EXPECT_TRUE(Shares().even());
  EXPECT_FALSE(Shares(std::vector<double>{1, 1}).even());
}

TEST(SharesTest, hash__differs_and_is_0_for_even_ones_only) {
  EXPECT_EQ(Shares().hash(), 0);
  std::set<std::uint16_t> hashes;
  for (int i = 0; i < 100; ++i) {
    hashes.insert(Shares(std::vector<double>{1, 1 + 0.01 * i, 2}).hash());
  }
  EXPECT_GE(hashes.size(), 99u);
  EXPECT_FALSE(hashes.contains(0));
}

}  // namespace
}  // namespace tarpon::shares_test
