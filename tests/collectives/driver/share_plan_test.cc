// The rule of learnt shares, beside a model of links.
#include "collectives/driver/share_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

namespace tarpon::share_plan_test {
namespace {

using Speeds = std::vector<double>;

/// Links of given speeds, which take a call as long as the slowest of them (shares.h).
class Links {
 public:
  explicit Links(Speeds speeds) : speeds_(std::move(speeds)), plan_(count()) {}

  void set(const Speeds& speeds) { speeds_ = speeds; }
  /// Standard deviation of a measurement, relative.
  void set_noise(double noise) { noise_ = noise; }
  /// Time of a call with these weights, where the model of links does not hold.
  void set_time(std::function<double(const Speeds&)> time) { time_ = std::move(time); }

  std::uint32_t count() const { return static_cast<std::uint32_t>(speeds_.size()); }
  Shares shares() const { return plan_.shares(); }

  /// Rank `late` begins this much later than the others, in times of a bucket over a link of speed
  /// 1.
  void set_late(Rank late, double lag) {
    late_ = late;
    lag_ = lag;
  }

  /// From the start of the last rank on, relative to one bucket over a link of speed 1.
  double time_with(const Speeds& weights) const {
    if (time_) return time_(weights);
    double longest = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double all = (1 + (count() - 2.0) * weights[i]) / speeds_[i];
      longest = std::max({longest, i == late_ ? all : all - lag_, 1 / speeds_[i]});
    }
    return longest;
  }
  double even_time() const { return time_with(Speeds(count(), 1.0 / count())); }
  /// Nothing takes less.
  double bound() const {
    const double sum = std::accumulate(speeds_.begin(), speeds_.end(), 0.0);
    return std::max(1 / *std::min_element(speeds_.begin(), speeds_.end()),
                    2 * (count() - 1.0) / sum);
  }

  /// One round of calls. Returns the time of a call.
  double round() {
    Speeds weights(count(), 1.0 / count());
    const Shares shares = plan_.shares();
    for (Rank rank = 0; rank < shares.ranks(); ++rank) {
      weights[rank] = shares.part(rank) / double{Shares::kWhole};
    }
    const double time = time_with(weights);
    std::vector<ShareSample> samples;
    for (std::size_t i = 0; i < speeds_.size(); ++i) {
      const double lag = i == late_ ? noisy(lag_) : 0;
      samples.push_back({noisy(speeds_[i]), noisy(time), lag, plan_.history()});
    }
    plan_.end_round(samples);
    return time;
  }

 private:
  double noisy(double value) {
    return value * std::max(0.1, 1 + noise_ * std::normal_distribution<double>()(random_));
  }

  Speeds speeds_;
  SharePlan plan_;
  double noise_ = 0;
  std::size_t late_ = 0;
  double lag_ = 0;
  std::function<double(const Speeds&)> time_;
  std::mt19937_64 random_{7};
};

const std::vector<Speeds> kUnequal{
    {0.5, 1, 1, 1}, {1, 1, 0.75, 1}, {1, 1, 1, 1, 1, 1, 1, 0.25}, {0.5, 0.6, 0.8, 0.9, 1, 1, 1, 1}};

TEST(SharePlanTest, unequal_links__the_bound_after_three_rounds) {
  for (const Speeds& speeds : kUnequal) {
    Links links(speeds);
    EXPECT_NEAR(links.round(), links.even_time(), 1e-9);
    links.round();
    EXPECT_LE(links.round(), 1.02 * links.bound());
  }
}

TEST(SharePlanTest, unequal_links__steps_back_cost_little) {
  for (const Speeds& speeds : kUnequal) {
    Links links(speeds);
    links.set_noise(0.01);
    for (int i = 0; i < 8; ++i) links.round();
    double sum = 0;
    for (int i = 0; i < 100; ++i) sum += links.round();
    EXPECT_LE(sum / 100, 1.05 * links.bound());
  }
}

TEST(SharePlanTest, a_link_recovers__even_after_eight_rounds) {
  for (const int before : {10, 50, 200}) {
    Links links({0.5, 1, 1, 1});
    links.set_noise(0.01);
    for (int i = 0; i < before; ++i) links.round();
    links.set({1, 1, 1, 1});
    double time = 0;
    for (int i = 0; i < 8; ++i) time = links.round();
    EXPECT_LE(time, 1.05 * links.bound()) << before;
    for (int i = 0; i < 50; ++i) time = links.round();
    EXPECT_LE(time, 1.05 * links.bound()) << before;
  }
}

TEST(SharePlanTest, another_link_becomes_slow__follows) {
  Links links({0.5, 1, 1, 1, 1});
  links.set_noise(0.01);
  for (int i = 0; i < 40; ++i) links.round();
  links.set({1, 1, 1, 0.4, 1});
  for (int i = 0; i < 12; ++i) links.round();
  double sum = 0;
  for (int i = 0; i < 50; ++i) sum += links.round();
  EXPECT_LE(sum / 50, 1.05 * links.bound());
}

TEST(SharePlanTest, equal_links__noise_costs_at_most_two_percent) {
  for (const double noise : {0.01, 0.05, 0.1}) {
    Links links({1, 1, 1, 1});
    links.set_noise(noise);
    double sum = 0;
    for (int i = 0; i < 500; ++i) sum += links.round();
    EXPECT_LE(sum / 500, 1.02 * links.even_time()) << noise;
  }
}

TEST(SharePlanTest, one_rank_is_late__it_owns_nothing_after_four_rounds) {
  for (const std::uint32_t ranks : {3u, 4u, 8u, 16u}) {
    for (const double lag : {1.0, 4.0}) {
      Links links(Speeds(ranks, 1));
      links.set_noise(0.01);
      links.set_late(2, lag);
      const double even = links.round();
      for (int i = 0; i < 3; ++i) links.round();
      EXPECT_EQ(links.shares().part(2), 0u);
      double sum = 0;
      for (int i = 0; i < 50; ++i) sum += links.round();
      EXPECT_NEAR(even, 2 - 2.0 / ranks, 1e-9);
      EXPECT_LE(sum / 50, 1.05) << ranks << " ranks, late by " << lag;
    }
  }
}

TEST(SharePlanTest, a_late_rank_comes_on_time__even_after_eight_rounds) {
  for (const std::uint32_t ranks : {4u, 8u, 16u}) {
    Links links(Speeds(ranks, 1));
    links.set_noise(0.01);
    links.set_late(1, 2.0);
    for (int i = 0; i < 50; ++i) links.round();
    links.set_late(1, 0);
    for (int i = 0; i < 8; ++i) links.round();
    double sum = 0;
    for (int i = 0; i < 50; ++i) sum += links.round();
    EXPECT_LE(sum / 50, 1.03 * links.even_time()) << ranks;
  }
}

TEST(SharePlanTest, late_at_first_alone__links_are_learnt_as_ever) {
  Links links({0.5, 1, 1, 1});
  links.set_late(2, 3.0);
  links.round();
  links.set_late(2, 0);
  links.round();
  EXPECT_LE(links.round(), 1.02 * links.bound());
}

TEST(SharePlanTest, late_in_one_round_of_four__even_shares_stay) {
  Links links(Speeds(8, 1));
  double sum = 0, even = 0;
  for (int i = 0; i < 200; ++i) {
    links.set_late(static_cast<Rank>(i % 8), i % 4 == 0 ? 2.0 : 0.0);
    even += links.even_time();
    sum += links.round();
  }
  EXPECT_LE(sum, 1.01 * even);
}

TEST(SharePlanTest, a_link_that_is_known_to_be_slow__and_a_rank_becomes_late) {
  for (const double lag : {0.5, 1.0, 1.5}) {
    Links links({0.5, 1, 1, 1, 1, 1, 1, 1});
    links.set_noise(0.01);
    for (int i = 0; i < 10; ++i) links.round();
    links.set_late(3, lag);
    for (int i = 0; i < 6; ++i) links.round();
    double sum = 0;
    for (int i = 0; i < 50; ++i) sum += links.round();
    EXPECT_LE(sum / 50, 1.06 * 2) << "2: what the slow link takes for a bucket; late by " << lag;
  }
}

TEST(SharePlanTest, after_many_failures__a_rank_becomes_late) {
  Links links(Speeds(8, 1));
  links.set_noise(0.1);
  for (int i = 0; i < 300; ++i) links.round();
  links.set_noise(0.01);
  links.set_late(3, 1.0);
  for (int i = 0; i < 4; ++i) links.round();
  EXPECT_LE(links.round(), 1.05);
}

TEST(SharePlanTest, late_in_the_round_of_a_trial__the_trial_is_repeated) {
  Links links({0.5, 1, 1, 1});
  links.set_time([](const Speeds&) { return 3; });
  links.round();
  ASSERT_FALSE(links.shares().even()) << "a trial";
  links.set_late(2, 3.0);
  links.set_time([](const Speeds&) { return 0.5; });  // from the start of the late rank on
  links.round();
  EXPECT_TRUE(links.shares().even());
  links.set_late(2, 0);
  links.set_time({});
  for (int i = 0; i < 4; ++i) links.round();
  EXPECT_LE(links.round(), 1.02 * links.bound());
}

/// Two links that elastic flows use too: what a rank sends less, they send more.
TEST(SharePlanTest, elastic_neighbours__even_shares_stay) {
  Links links({0.5, 0.5, 1, 1});
  links.set_time([](const Speeds& weights) {
    return 3 + std::abs(weights[0] - 0.25) + std::abs(weights[2] - 0.25);
  });
  double sum = 0;
  for (int i = 0; i < 200; ++i) {
    sum += links.round();
  }
  EXPECT_LE(sum / 200, 1.02 * links.even_time());
}

TEST(SharePlanTest, a_rank_that_measured_nothing__the_shares_stay) {
  SharePlan plan(4);
  plan.end_round(std::vector<ShareSample>{{1, 1}, {1, 1}, {0.5, 1}, {0, 0}});
  EXPECT_TRUE(plan.shares().even());
  plan.end_round(std::vector<ShareSample>{{1, 1}, {1, 1}, {0.5, 1}, {1, 1}});
  EXPECT_FALSE(plan.shares().even());
}

/// Plans of ranks that get the same samples, but for a rank that misses a round.
TEST(SharePlanTest, history__ranks_that_differ_begin_anew_alike) {
  std::vector<SharePlan> plans(3, SharePlan(3));
  const auto round = [&plans](const Speeds& speeds, std::size_t misses) {
    std::vector<ShareSample> samples;
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      samples.push_back({speeds[rank], 1 / speeds[2], 0, plans[rank].history()});
    }
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      if (rank != misses) plans[rank].end_round(samples);
    }
  };
  const auto alike = [&plans] {
    return plans[0].shares() == plans[1].shares() && plans[1].shares() == plans[2].shares();
  };
  constexpr std::size_t kNone = 9;
  const Speeds slow{1, 1, 0.25};
  round(slow, 1);
  EXPECT_FALSE(alike()) << "two of them try other shares";
  round(slow, kNone);
  EXPECT_TRUE(alike());
  EXPECT_TRUE(plans[0].shares().even());
  EXPECT_EQ(plans[0].history(), plans[1].history());
  round(slow, kNone);
  EXPECT_TRUE(alike());
  EXPECT_FALSE(plans[0].shares().even()) << "they learn again";
}

TEST(SharePlanTest, history__a_round_that_changes_nothing_may_be_missed) {
  SharePlan plan(3);
  const std::uint64_t before = plan.history();
  plan.end_round(std::vector<ShareSample>{{1, 1, 0, before}, {1, 0, 0, before}, {1, 1, 0, before}});
  EXPECT_EQ(plan.history(), before) << "a rank has measured nothing";
}

}  // namespace
}  // namespace tarpon::share_plan_test
