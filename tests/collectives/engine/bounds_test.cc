// What bounded calls are given, learnt from those before them and told by the peers.
#include "collectives/engine/learning/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "transport/random.h"

namespace tarpon::bounds_test {
namespace {

constexpr std::uint64_t kBytes = 25 << 20;
constexpr CallKind kKind{.bytes = kBytes};
constexpr std::uint64_t kAll = ~0ull;

BoundsOptions four_ranks() {
  return {.world_size = 4, .loss_target = 0.001};
}

BoundSample sample(Duration whole, const CallKind& kind = kKind) {
  BoundSample result;
  result.kind = kind;
  result.elapsed = whole;
  result.stages = {whole * 8 / 10, whole};
  result.gather = whole * 2 / 10;
  result.bounded = true;
  result.packets = 10'000;
  return result;
}

void learn(Bounds& bounds, const BoundSample& one) {
  bounds.learn(one, BoundRule::learnt, std::nullopt);
}

void learn(Bounds& bounds, int calls, Duration whole, const CallKind& kind = kKind) {
  for (int i = 0; i < calls; ++i) learn(bounds, sample(whole, kind));
}

BoundTerms terms(Bounds& bounds, const CallKind& kind = kKind) {
  return bounds.plan({BoundRule::learnt, std::nullopt, kind}, 10s).terms;
}

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

TEST(BoundsTest, plan__a_bound_alone_is_taken_and_never_above_what_is_left) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 100ms);
  EXPECT_EQ(bounds.plan({BoundRule::automatic, 30ms, kKind}, 10s).terms.whole, 30ms);
  EXPECT_EQ(bounds.plan({BoundRule::automatic, 30s, kKind}, 10s).terms.whole, 10s);
  EXPECT_EQ(bounds.plan({BoundRule::learnt, 30ms, kKind}, 10s).terms.whole, 30ms);
  EXPECT_EQ(bounds.plan({BoundRule::learnt, 30s, kKind}, 10s).terms.whole, terms(bounds).whole);
  EXPECT_EQ(bounds.plan({BoundRule::automatic, std::nullopt, kKind}, 10s).terms.whole,
            terms(bounds).whole);
}

TEST(BoundsTest, plan__nothing_known_may_take_all_that_is_left) {
  Bounds bounds(four_ranks());
  const BoundPlan plan = bounds.plan({BoundRule::learnt, std::nullopt, kKind}, 10s);
  EXPECT_EQ(plan.terms.whole, 10s);
  EXPECT_EQ(plan.terms.gather, 1s);
  EXPECT_EQ(plan.early[0], Duration::zero());
  EXPECT_EQ(plan.stage_time, 0);
  learn(bounds, 49, 100ms);
  const BoundPlan later = bounds.plan({BoundRule::learnt, std::nullopt, kKind}, 10s);
  EXPECT_EQ(later.terms.whole, 10s) << "too few calls are known";
  EXPECT_EQ(later.early[0], Duration::zero());
  EXPECT_NE(later.stage_time, 0);
}

TEST(BoundsTest, plan__is_a_tenth_above_the_usual_time_without_a_tail) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 100ms);
  const BoundPlan plan = bounds.plan({BoundRule::learnt, std::nullopt, kKind}, 10s);
  EXPECT_NEAR(milliseconds(plan.terms.whole), 110, 0.1);
  EXPECT_NEAR(milliseconds(plan.terms.gather), 22, 0.1);
  EXPECT_NEAR(milliseconds(plan.early[0]), 0.8, 0.01) << "x is down to 1 %";
  EXPECT_NEAR(milliseconds(plan.early[1]), 1, 0.01);
  EXPECT_NEAR(plan.stage_time * 16, 100'000, 20);
}

TEST(BoundsTest, plan__a_short_call_has_two_milliseconds_more_than_usual) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 30us);
  EXPECT_EQ(terms(bounds).whole, 2030us);
  EXPECT_NEAR(milliseconds(terms(bounds).gather), 1, 0.02);
}

TEST(BoundsTest, learn__a_short_call_that_loses_more_than_the_target_gets_a_longer_bound) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 1ms);
  BoundSample lost = sample(3ms);
  lost.lost = 0.25;
  for (int i = 0; i < 200; ++i) learn(bounds, i % 20 == 0 ? lost : sample(1ms));
  EXPECT_GT(terms(bounds).whole, 3900us);
}

TEST(BoundsTest, plan__a_longer_time_than_the_header_can_hold_is_not_told) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 4s);
  EXPECT_EQ(bounds.plan({BoundRule::learnt, std::nullopt, kKind}, 60s).stage_time, 0);
}

TEST(BoundsTest, plan__a_size_class_has_a_bound_of_its_own) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 100ms);
  EXPECT_NEAR(milliseconds(terms(bounds, {.bytes = kBytes * 6 / 5}).whole), 132, 0.1);
  EXPECT_EQ(terms(bounds, {.bytes = kBytes / 4}).whole, 10s);
  EXPECT_EQ(terms(bounds, {.bytes = kBytes * 3}).whole, 10s);
}

TEST(BoundsTest, plan__small_calls_take_the_same_time) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 20ms, {.bytes = 5000});
  EXPECT_NEAR(milliseconds(terms(bounds, {.bytes = 8000}).whole), 22, 0.1);
}

TEST(BoundsTest, plan__kinds_are_apart) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 100ms);
  // Until they are known: two calls share the network; the coded one takes the coding more.
  EXPECT_NEAR(milliseconds(terms(bounds, {.bytes = kBytes, .open = 2}).whole), 220, 0.1);
  const BoundPlan coded =
      bounds.plan({BoundRule::learnt, std::nullopt, {.bytes = kBytes, .coded = true}, 40ms}, 10s);
  EXPECT_NEAR(milliseconds(coded.terms.whole), 150, 0.1);
  learn(bounds, 50, 300ms, {.bytes = kBytes, .open = 2});
  learn(bounds, 50, 200ms, {.bytes = kBytes, .coded = true});
  EXPECT_NEAR(milliseconds(terms(bounds).whole), 110, 0.1);
  EXPECT_NEAR(milliseconds(terms(bounds, {.bytes = kBytes, .open = 2}).whole), 330, 0.1);
  EXPECT_NEAR(milliseconds(terms(bounds, {.bytes = kBytes, .coded = true}).whole), 220, 0.1);
}

TEST(BoundsTest, plan__tells_what_the_peers_do_not_know) {
  Bounds bounds(four_ranks());
  const auto tells = [&bounds] {
    return bounds.plan({BoundRule::learnt, std::nullopt, kKind}, 10s).tells;
  };
  EXPECT_TRUE(tells());
  EXPECT_FALSE(tells());
  learn(bounds, 50, 100ms);
  EXPECT_TRUE(tells());
  EXPECT_FALSE(tells());
  BoundSample lost = sample(100ms);
  lost.lost = 0.01;
  learn(bounds, lost);
  const BoundPlan plan = bounds.plan({BoundRule::learnt, std::nullopt, kKind}, 10s);
  EXPECT_TRUE(plan.tells);
  EXPECT_DOUBLE_EQ(plan.terms.lost, 0.01);
  EXPECT_DOUBLE_EQ(terms(bounds).lost, 0);
}

TEST(BoundsTest, gather__of_a_kind_that_is_not_known_is_that_of_the_nearest_one) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 100ms);
  const BoundedCall quarter{BoundRule::automatic, 27500us, {.bytes = kBytes / 4}};
  EXPECT_NEAR(milliseconds(bounds.plan(quarter, 10s).terms.gather), 5 + 1.25, 0.1)
      << "half of what 27.5 ms leave";
  EXPECT_NEAR(milliseconds(terms(bounds, {.bytes = kBytes, .open = 2}).gather), 40 + 2, 0.1);
  const BoundPlan coded =
      bounds.plan({BoundRule::learnt, std::nullopt, {.bytes = kBytes, .coded = true}, 40ms}, 10s);
  EXPECT_NEAR(milliseconds(coded.terms.gather), 20 + 20 + 2, 0.1) << "and decoding";
}

TEST(BoundsTest, gather__what_was_cut_off_would_have_taken_longer) {
  Bounds bounds(four_ranks());
  for (int i = 0; i < 9; ++i) {
    BoundSample cut = sample(100ms);
    cut.gathered = 0.8;
    learn(bounds, cut);
  }
  EXPECT_NEAR(milliseconds(terms(bounds).gather), 20 / 0.8 + 2, 0.1);
  for (int i = 0; i < 100; ++i) {
    BoundSample cut = sample(100ms);
    cut.stages[0] = 90ms;
    cut.scattered = 0.9;
    learn(bounds, cut);
  }
  EXPECT_NEAR(milliseconds(terms(bounds).gather), 20 + 2, 0.1)
      << "scatters need 100 of 110 ms and are cut anyway; gathers lose four times as much";
}

TEST(BoundsTest, agree__the_upper_median_of_the_bounds_and_the_largest_grace) {
  Bounds bounds(four_ranks());
  const BoundTerms own{.whole = 100ms, .gather = 10ms};
  EXPECT_EQ(bounds.agree({BoundRule::learnt, std::nullopt, kKind}, own, kAll, 10s).whole, 100ms);
  bounds.heard(1, kKind, {.whole = 110ms, .gather = 5ms});
  EXPECT_EQ(bounds.agree({BoundRule::learnt, std::nullopt, kKind}, own, kAll, 10s).whole, 110ms);
  bounds.heard(2, kKind, {.whole = 120ms, .gather = 30ms});
  bounds.heard(3, kKind, {.whole = 130ms, .gather = 20ms});
  EXPECT_EQ(bounds.agree({BoundRule::learnt, std::nullopt, kKind}, own, kAll, 10s).whole, 120ms);
  EXPECT_EQ(bounds.agree({BoundRule::learnt, std::nullopt, kKind}, own, kAll, 10s).grace, 30ms);
  EXPECT_EQ(bounds.agree({BoundRule::learnt, std::nullopt, kKind}, own, 0b1011, 10s).whole, 110ms)
      << "without rank 2";
  EXPECT_EQ(bounds.agree({BoundRule::learnt, std::nullopt, kKind}, own, 0b1011, 10s).grace, 20ms);
  EXPECT_EQ(bounds.agree({BoundRule::learnt, std::nullopt, kKind}, own, kAll, 50ms).whole, 50ms)
      << "what the deadline leaves";
  EXPECT_EQ(bounds.agree({BoundRule::learnt, std::nullopt, kKind}, own, kAll, 50ms).grace, 25ms);
  EXPECT_EQ(bounds.agree({BoundRule::automatic, 100ms, kKind}, own, kAll, 10s).whole, 100ms)
      << "given";
  const CallKind half{.bytes = kBytes * 3 / 4};
  EXPECT_NEAR(
      milliseconds(bounds.agree({BoundRule::learnt, std::nullopt, half}, own, kAll, 10s).grace),
      22.5, 0.1)
      << "scaled";
}

TEST(BoundsTest, agree__a_rank_whose_terms_do_not_count_takes_those_of_the_others) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 100ms);
  const BoundedCall call{BoundRule::learnt, std::nullopt, kKind};
  const BoundTerms own = terms(bounds);
  EXPECT_EQ(bounds.agree(call, std::nullopt, kAll, 10s).whole, own.whole) << "there are no others";
  bounds.heard(1, kKind, {.whole = 20ms, .gather = 5ms});
  EXPECT_EQ(bounds.agree(call, own, kAll, 10s).whole, own.whole);
  EXPECT_EQ(bounds.agree(call, std::nullopt, kAll, 10s).whole, 20ms);
}

TEST(BoundsTest, plan__knows_what_the_peers_were_told_before) {
  Bounds bounds(four_ranks());
  const BoundedCall call{BoundRule::learnt, std::nullopt, kKind};
  learn(bounds, 50, 100ms);
  EXPECT_FALSE(bounds.plan(call, 10s).before);
  const Duration first = bounds.plan(call, 10s).before->whole;
  EXPECT_EQ(first, bounds.plan(call, 10s).terms.whole);
  learn(bounds, 200, 300ms);
  const BoundPlan later = bounds.plan(call, 10s);
  EXPECT_TRUE(later.tells);
  EXPECT_EQ(later.before->whole, first);
  EXPECT_GT(later.terms.whole, 2 * first);
}

/// A shard of this rank does not take longer because another rank's does.
TEST(BoundsTest, agree__g_is_the_ranks_own) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 100ms);
  const BoundTerms own = terms(bounds);
  bounds.heard(1, kKind, {.whole = 120ms, .gather = 50ms});
  const CallBound bound = bounds.agree({BoundRule::learnt, std::nullopt, kKind}, own, kAll, 10s);
  EXPECT_EQ(bound.whole, 120ms);
  EXPECT_NEAR(milliseconds(bound.gather), 22, 0.1);
  EXPECT_EQ(bound.grace, 50ms);
}

TEST(BoundsTest, terms__survive_the_way) {
  const BoundTerms terms{.whole = 123'456us, .gather = 7us, .lost = 0.012345};
  const BoundTerms back = decode(encode(terms));
  EXPECT_EQ(back.whole, terms.whole);
  EXPECT_EQ(back.gather, terms.gather);
  EXPECT_DOUBLE_EQ(back.lost, terms.lost);
  EXPECT_EQ(decode(encode(BoundTerms{.whole = 7200s})).whole, 4'294'967'295us);
}

TEST(BoundsTest, plan__the_rule_of_the_call_is_chosen) {
  Bounds bounds(four_ranks());
  BoundSample exact = sample(60ms);
  exact.bounded = false;
  bounds.learn(exact, BoundRule::optireduce, std::nullopt);
  const BoundTerms published = bounds.plan({BoundRule::optireduce, std::nullopt, kKind}, 10s).terms;
  EXPECT_NEAR(milliseconds(published.whole), 60, 0.1);
  EXPECT_NEAR(milliseconds(published.gather), 30, 0.1);
  EXPECT_EQ(terms(bounds).whole, 10s) << "exact calls teach the learnt bound nothing";
  EXPECT_EQ(Bounds::calibration(BoundRule::optireduce), 20u);
  EXPECT_EQ(Bounds::calibration(BoundRule::learnt), 0u);
}

TEST(BoundsTest, learn__a_rank_that_is_not_heard_at_all_teaches_when_it_is_back) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 100ms);
  BoundSample lacking = sample(110ms);
  lacking.silent = 0b100;
  for (int i = 0; i < 10; ++i) learn(bounds, lacking);
  EXPECT_NEAR(milliseconds(terms(bounds).whole), 110, 0.1);
  bounds.absent(2);
  learn(bounds, sample(100ms));
  EXPECT_NEAR(milliseconds(terms(bounds).whole), 110, 0.1) << "rank 2 was suspect";
  for (int i = 0; i < 10; ++i) learn(bounds, lacking);
  learn(bounds, sample(100ms));
  EXPECT_GT(milliseconds(terms(bounds).whole), 200) << "rank 2 was slow";
}

TEST(BoundsTest, learn__a_straggler_counts_with_the_time_that_it_would_have_taken) {
  Bounds bounds(four_ranks());
  learn(bounds, 50, 100ms);
  BoundSample late = sample(110ms);
  late.straggler = 150ms;
  late.gather = 20ms;
  learn(bounds, late);
  EXPECT_NEAR(milliseconds(terms(bounds).whole), 170, 5);
}

TEST(BoundsTest, learn__the_largest_loss_of_any_rank_counts) {
  // Both see the same times and lose nothing themselves; a peer of the second one loses.
  Bounds alone(four_ranks()), told(four_ranks());
  Random random(3);
  for (int i = 0; i < 500; ++i) {
    const Duration time = 100ms + Duration(static_cast<std::int64_t>(random.below(60'000'000)));
    told.heard(1, kKind, {.whole = 150ms, .gather = 20ms, .lost = 0.003});
    learn(alone, sample(time));
    learn(told, sample(time));
  }
  EXPECT_GT(terms(told).whole, terms(alone).whole);
}

TEST(BoundsTest, learn__nothing_is_made_up_for_while_the_bound_stands_at_the_limit) {
  Bounds limited(four_ranks()), free(four_ranks());
  BoundSample lost = sample(100ms);
  lost.lost = 0.05;
  for (int i = 0; i < 300; ++i) limited.learn(lost, BoundRule::learnt, 100ms);
  Random random(3);
  for (int i = 0; i < 1500; ++i) {
    const Duration time = 40ms + Duration(static_cast<std::int64_t>(random.below(20'000'000)));
    limited.learn(sample(time), BoundRule::learnt, 100ms);
    learn(free, sample(time));
  }
  EXPECT_NEAR(milliseconds(terms(limited).whole), milliseconds(terms(free).whole), 2);
}

TEST(BoundsTest, patience__follows_what_early_closing_lost) {
  Bounds bounds(four_ranks());
  BoundSample late = sample(100ms);
  late.early_lost = 0.001;
  learn(bounds, late);
  EXPECT_DOUBLE_EQ(bounds.patience(), 0.2);
  for (int i = 0; i < 5; ++i) learn(bounds, late);
  EXPECT_DOUBLE_EQ(bounds.patience(), 0.5);
  BoundSample lost = sample(100ms);
  lost.lost = 0.01;
  for (int i = 0; i < 60; ++i) learn(bounds, lost);
  EXPECT_DOUBLE_EQ(bounds.patience(), 0.01);
  bounds.learn(lost, BoundRule::optireduce, std::nullopt);
  EXPECT_DOUBLE_EQ(bounds.patience(), 0.02);
}

// -- several ranks

/// Four ranks that call together and tell each other their terms.
class Job {
 public:
  explicit Job(double target) {
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.emplace_back(BoundsOptions{.world_size = kRanks, .loss_target = target});
    }
  }

  /// A call that would take each rank `times`. Returns the largest lost share.
  double call(const CallKind& kind, const std::vector<Duration>& times) {
    std::vector<BoundTerms> told;
    for (Bounds& one : ranks_) told.push_back(terms(one, kind));
    double lost = 0;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      for (Rank peer = 0; peer < kRanks; ++peer) {
        if (peer != rank) ranks_[rank].heard(peer, kind, decode(encode(told[peer])));
      }
      bound_ =
          ranks_[rank].agree({BoundRule::learnt, std::nullopt, kind}, told[rank], kAll, 10s).whole;
      BoundSample one = sample(std::min(times[rank], bound_), kind);
      one.lost = std::max(0.0, 1 - milliseconds(bound_) / milliseconds(times[rank]));
      learn(ranks_[rank], one);
      lost = std::max(lost, one.lost);
    }
    return lost;
  }

  Duration bound() const { return bound_; }

 private:
  static constexpr Rank kRanks = 4;
  std::vector<Bounds> ranks_;
  Duration bound_{};
};

/// Mostly 100 ms, with a tail.
Duration long_tailed(Random& random) {
  const auto spread = static_cast<std::int64_t>(random.below(10'000'000));
  const auto tail = random.chance(0.2) ? static_cast<std::int64_t>(random.below(100'000'000)) : 0;
  return 100ms + Duration(spread + tail);
}

/// It is a ceiling, but the tail of these calls is worth cutting.
void expect_target(double lost, int calls, double target) {
  EXPECT_LE(lost / calls, 1.1 * target);
  EXPECT_GE(lost / calls, 0.4 * target);
}

TEST(BoundsTest, ranks_that_see_different_times__keep_the_target) {
  constexpr double kTarget = 0.005;
  Job job(kTarget);
  Random random(11);
  double lost = 0;
  for (int i = 0; i < 4000; ++i) {
    const Duration time = long_tailed(random);
    std::vector<Duration> times;
    for (int rank = 0; rank < 4; ++rank) {
      times.push_back(time * static_cast<std::int64_t>(100 + random.below(6)) / 100);
    }
    const double share = job.call(kKind, times);
    if (i >= 200) lost += share;
  }
  expect_target(lost, 3800, kTarget);
}

TEST(BoundsTest, alternating_sizes_and_two_in_flight__each_kind_keeps_the_target) {
  constexpr double kTarget = 0.005;
  Job job(kTarget);
  Random random(12);
  const std::vector<CallKind> kinds{
      {.bytes = kBytes}, {.bytes = kBytes / 8}, {.bytes = kBytes, .open = 2}};
  std::vector<double> lost(kinds.size());
  for (int i = 0; i < 4000; ++i) {
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      const std::int64_t part = kind == 1 ? 8 : 1;
      const Duration time = long_tailed(random) * kinds[kind].open / part;
      const double share = job.call(kinds[kind], std::vector<Duration>(4, time));
      if (i >= 200) lost[kind] += share;
    }
  }
  for (const double one : lost) expect_target(one, 3800, kTarget);
}

TEST(BoundsTest, quiet_busy_quiet__is_followed_without_jumps) {
  Job job(0.001);
  Random random(7);
  const auto run = [&](Duration usual, int calls) {
    for (int i = 0; i < calls; ++i) {
      const Duration before = job.bound();
      const Duration time = usual * static_cast<std::int64_t>(95 + random.below(11)) / 100;
      job.call(kKind, std::vector<Duration>(4, time));
      if (before == Duration::zero() || before == 10s) continue;
      // A call that loses much doubles the bound at once. Its estimate raises the bound as well.
      EXPECT_LE(job.bound(), 3 * before);
      EXPECT_GE(3 * job.bound(), before);
    }
    return milliseconds(job.bound());
  };
  EXPECT_NEAR(run(100ms, 60), 112, 5);
  EXPECT_NEAR(run(300ms, 20), 335, 20);
  EXPECT_NEAR(run(100ms, 110), 112, 8);
}

}  // namespace
}  // namespace tarpon::bounds_test
