// The scale model (tools/scale/) against closed forms, and what must hold whatever the seed.
#include <gtest/gtest.h>

#include <iterator>
#include <string>

#include "tools/scale/bounds_model.h"
#include "tools/scale/experiment.h"
#include "tools/scale/quantiles.h"
#include "tools/scale/trains.h"

namespace tarpon::scale {
namespace {

/// A quiet network: no loss, no tail, room for all.
Plan quiet_plan() {
  Plan plan;
  plan.network.queue_bytes = 0;
  plan.bytes = 2 << 20;
  plan.operations = 5;
  plan.algorithms = {Algorithm::ring};
  return plan;
}

CellResult run(const Plan& plan, Algorithm algorithm, std::uint32_t ranks) {
  return run_cell(plan, algorithm, ranks, [] {});
}

Duration p50(const CellResult& cell) {
  return quantile(cell.completions, 0.5);
}

void expect_near(Duration actual, Duration expected, double share) {
  EXPECT_NEAR(static_cast<double>(actual.count()), static_cast<double>(expected.count()),
              share * static_cast<double>(expected.count()));
}

TEST(ScaleModel, quiet__ring_takes_the_closed_form) {
  for (const std::uint32_t ranks : {2u, 3u, 8u, 33u, 64u}) {
    SCOPED_TRACE(ranks);
    const Plan plan = quiet_plan();
    expect_near(p50(run(plan, Algorithm::ring, ranks)), quiet_time(plan, ranks, 2 * (ranks - 1)),
                0.02);
  }
}

TEST(ScaleModel, quiet__tar_takes_the_closed_form) {
  // Two stages, each a delay behind the bandwidth.
  for (const Algorithm algorithm : {Algorithm::tar, Algorithm::bounded}) {
    for (const std::uint32_t ranks : {2u, 8u, 33u}) {
      SCOPED_TRACE(ranks);
      Plan plan = quiet_plan();
      plan.train_packets = 1;
      Duration expected = quiet_time(plan, ranks, 2);
      if (algorithm == Algorithm::bounded) expected = expected * (1538 * 1448) / (1538 * 1408);
      expect_near(p50(run(plan, algorithm, ranks)), expected, 0.02);
    }
  }
}

TEST(ScaleModel, quiet__halving_doubling_takes_the_closed_form) {
  const Plan plan = quiet_plan();
  expect_near(p50(run(plan, Algorithm::halving_doubling, 16)), quiet_time(plan, 16, 8), 0.02);
  // 3 ranks: rank 2 folds into rank 0 while rank 1 sends its half there (1.5 buckets in), then
  // rank 0 sends two halves to rank 1 and the result to rank 2 (2 buckets out).
  const Duration bucket = quiet_time(plan, 2, 0);
  expect_near(p50(run(plan, Algorithm::halving_doubling, 3)), bucket * 7 / 2, 0.03);
}

TEST(ScaleModel, quiet__whole_buckets_and_other_schedules_take_what_they_send) {
  Plan plan = quiet_plan();
  plan.train_packets = 1;
  const Duration bucket = quiet_time(plan, 2, 0);
  expect_near(p50(run(plan, Algorithm::one_shot, 4)), 3 * bucket, 0.03);
  expect_near(p50(run(plan, Algorithm::recursive_doubling, 8)), 3 * bucket, 0.03);
  for (const Algorithm algorithm : {Algorithm::circulant, Algorithm::two_level_tar}) {
    SCOPED_TRACE(name_of(algorithm));
    expect_near(p50(run(plan, algorithm, 16)), quiet_time(plan, 16, 8), 0.1);
  }
}

/// Time after the arrival of a late rank, in times of a bucket on a link.
double after_arrival(Plan plan, Algorithm algorithm, std::uint32_t ranks) {
  plan.network.late = 4 * bucket_time(plan);
  const Duration completion = p50(run(plan, algorithm, ranks));
  return static_cast<double>(completion.count()) / static_cast<double>(bucket_time(plan).count());
}

TEST(ScaleModel, late__the_published_times_whatever_the_train) {
  Plan plan = quiet_plan();
  plan.network.delay = 1us;
  for (const std::uint32_t train : {1u, 8u}) {
    plan.train_packets = train;
    for (const auto& [ranks, published] : {std::pair(4u, 1.333), {8u, 1.286}, {16u, 1.200}}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, trains of " + std::to_string(train));
      plan.bytes = std::uint64_t{ranks - 1} * (240 << 10);
      EXPECT_NEAR(after_arrival(plan, Algorithm::stragglar, ranks), published, 0.05 * published);
      // The same chunks, pipelined.
      ASSERT_EQ(late_rank_segments(ranks, plan.bytes), 1u);
      EXPECT_LT(after_arrival(plan, Algorithm::late_rank, ranks), 1.05 * published);
    }
  }
}

TEST(ScaleModel, late__a_round_takes_two_delays_besides) {
  Plan plan = quiet_plan();
  plan.bytes = 7 * (240 << 10);
  const double before = after_arrival(plan, Algorithm::stragglar, 8);
  plan.network.delay += 20us;
  // 9 rounds: the signal and the piece. The late rank may send its first piece when it arrives.
  constexpr double kDelays = 2 * 9 - 1;
  const double more = kDelays * ms(20us) / ms(bucket_time(plan));
  EXPECT_NEAR(after_arrival(plan, Algorithm::stragglar, 8), before + more, 0.01);
}

TEST(ScaleModel, late__more_chunks_and_shares_take_less) {
  Plan plan = quiet_plan();
  plan.network.delay = 1us;
  plan.bytes = 28 * (256 << 10);
  ASSERT_EQ(late_rank_segments(8, plan.bytes), 4u);
  EXPECT_NEAR(after_arrival(plan, Algorithm::late_rank, 8), (28 + 2) / 28.0, 0.05);
  EXPECT_NEAR(after_arrival(plan, Algorithm::tar_shares, 8), 1, 0.05);
  EXPECT_NEAR(after_arrival(plan, Algorithm::ring, 8), 1.75, 0.05);
}

TEST(ScaleModel, late__what_it_does_not_go_with) {
  Plan plan = quiet_plan();
  plan.ranks = {8};
  plan.network.late = 1ms;
  ASSERT_TRUE(check(plan));
  plan.algorithms = {Algorithm::ring, Algorithm::bounded};
  EXPECT_NE(check(plan).error().message.find("bounded does not wait"), std::string::npos);
  plan.algorithms = {Algorithm::ring};
  plan.network.straggler_trace.push_back({0, 1, {Duration{}, 1ms, true}});
  EXPECT_NE(check(plan).error().message.find("--straggler-trace"), std::string::npos);
}

TEST(ScaleModel, quiet__nothing_lost_and_nothing_sent_twice) {
  const Plan plan = quiet_plan();
  for (const Algorithm algorithm : kAlgorithms) {
    const CellResult cell = run(plan, algorithm, 8);
    EXPECT_EQ(cell.lost_mean, 0) << name_of(algorithm);
    EXPECT_EQ(cell.retransmitted + cell.probes + cell.timeouts + cell.queue_drops, 0u);
    EXPECT_EQ(cell.completions.size(), plan.operations);
  }
}

TEST(ScaleModel, slow_interface__decides_instead_of_the_link) {
  Plan plan = quiet_plan();
  plan.network.egress_bits_per_second = 2e9;
  expect_near(p50(run(plan, Algorithm::ring, 4)), quiet_time(plan, 4, 6), 0.02);
  // Without a limit of its own the link to the receiver decides, through its queue.
  plan.network.egress_bits_per_second = 0;
  plan.network.bits_per_second = 2e9;
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::bounded}) {
    expect_near(p50(run(plan, algorithm, 4)), quiet_time(plan, 4, 6), 0.05);
  }
}

TEST(ScaleModel, core__shared_by_all) {
  Plan plan = quiet_plan();
  plan.network.core_bits_per_second = 10e9;
  // All ranks' bytes pass one link.
  expect_near(p50(run(plan, Algorithm::tar, 4)), 4 * quiet_time(plan, 4, 0), 0.03);
}

TEST(ScaleModel, background__takes_its_share) {
  Plan plan = quiet_plan();
  plan.network.queue_bytes = 1 << 20;
  plan.network.background_bits_per_second = 3e9;
  const Duration quiet = p50(run(quiet_plan(), Algorithm::ring, 4));
  EXPECT_GT(p50(run(plan, Algorithm::ring, 4)), quiet * 12 / 10);
}

TEST(ScaleModel, loss__only_lengthens_reliable_ones) {
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::halving_doubling, Algorithm::tar}) {
    SCOPED_TRACE(name_of(algorithm));
    Plan plan = quiet_plan();
    plan.operations = 30;
    const Duration quiet = p50(run(plan, algorithm, 8));
    Duration before = quiet;
    for (const double loss : {0.001, 0.01}) {
      plan.network.loss = loss;
      const CellResult cell = run(plan, algorithm, 8);
      EXPECT_EQ(cell.lost_mean, 0);
      EXPECT_GT(cell.retransmitted, 0u);
      EXPECT_GE(cell.completions.front(), quiet);
      EXPECT_GT(p50(cell), before);
      before = p50(cell);
      const double resent =
          static_cast<double>(cell.retransmitted) / static_cast<double>(cell.packets);
      EXPECT_NEAR(resent, loss, loss / 2);
    }
  }
}

TEST(ScaleModel, loss__tail_of_a_burst_waits_for_the_timer) {
  // A single packet each way: nothing sent later can tell of its loss.
  Plan plan = quiet_plan();
  plan.bytes = 2 * 1448;
  plan.network.loss = 0.2;
  plan.operations = 50;
  for (const TailLoss tail_loss : {TailLoss::probe, TailLoss::rto}) {
    plan.tail_loss = tail_loss;
    const CellResult cell = run(plan, Algorithm::tar, 2);
    EXPECT_LT(cell.completions.front(), 1ms);
    EXPECT_GE(cell.completions.back(), 200ms);
    EXPECT_EQ(cell.probes > 0, tail_loss == TailLoss::probe);
    EXPECT_GT(cell.timeouts, 0u);
  }
}

TEST(ScaleModel, bounded__loses_what_is_injected_and_what_is_cut) {
  for (const double loss : {0.001, 0.01}) {
    for (const Repair repair : {Repair::all, Repair::gather, Repair::none}) {
      SCOPED_TRACE(loss);
      Plan plan = quiet_plan();
      plan.operations = 60;
      plan.repair = repair;
      plan.network.loss = loss;
      const CellResult cell = run(plan, Algorithm::bounded, 8);
      const double stages = repair == Repair::all ? 0 : repair == Repair::gather ? 1 : 2;
      EXPECT_GT(cell.lost_mean, stages * loss * 0.6);
      EXPECT_LT(cell.lost_mean, stages * loss + cell.cut + 0.0002);
      EXPECT_LT(cell.cut, 0.002);
    }
  }
}

TEST(ScaleModel, bounded__closes_early_under_loss) {
  Plan plan = quiet_plan();
  plan.operations = 60;
  const Duration quiet = p50(run(plan, Algorithm::bounded, 8));
  plan.repair = Repair::gather;
  plan.network.loss = 0.001;
  const CellResult cell = run(plan, Algorithm::bounded, 8);
  EXPECT_GT(cell.early_share, 0.3);  // only the gather repairs, and completes
  EXPECT_EQ(cell.bound_share, 0);
  EXPECT_LT(p50(cell), quiet * 115 / 100);
  EXPECT_LT(p50(cell), cell.bounds.front());
}

TEST(ScaleModel, bounded__ends_by_its_bounds_whatever_the_stragglers) {
  Plan plan = quiet_plan();
  plan.network.tail = 3;
  plan.network.stragglers = 0.05;
  plan.operations = 50;
  for (const std::optional<Duration> bound :
       {std::optional<Duration>(5ms), std::optional<Duration>()}) {
    plan.bound = bound;
    const CellResult cell = run(plan, Algorithm::bounded, 8);
    EXPECT_LE(cell.completions.back(), cell.bounds.back());
    // A learnt bound waits for ranks that are late so often.
    EXPECT_EQ(cell.late > 0, bound.has_value());
    EXPECT_GT(cell.bound_share, 0);
    EXPECT_GT(cell.lost_mean, 0);
    EXPECT_LE(cell.lost_mean, cell.lost_worst);
  }
  EXPECT_GT(run(plan, Algorithm::ring, 8).completions.back(),
            run(plan, Algorithm::bounded, 8).completions.back());
}

TEST(ScaleModel, bounded__short_bound_cuts) {
  Plan plan = quiet_plan();
  plan.bound = quiet_time(plan, 8, 2) / 4;
  const CellResult cell = run(plan, Algorithm::bounded, 8);
  EXPECT_EQ(cell.completions.back(), *plan.bound);
  EXPECT_EQ(cell.bound_share, 1);
  EXPECT_GT(cell.lost_mean, 0.3);
}

TEST(ScaleModel, tail__is_the_ratio_where_the_slowest_is_waited_for) {
  for (const double tail : {1.5, 3.0}) {
    Plan plan = quiet_plan();
    plan.network.tail = tail;
    plan.bytes = 1 << 20;
    plan.operations = 1000;
    plan.train_packets = 64;
    const CellResult cell = run(plan, Algorithm::ring, kReferenceRanks);
    const double ratio = static_cast<double>(quantile(cell.completions, 0.99).count()) /
                         static_cast<double>(p50(cell).count());
    EXPECT_NEAR(ratio, tail, 0.25 * tail);
  }
}

TEST(ScaleModel, same_seed__same_result_with_any_number_of_threads) {
  Plan plan;
  plan.ranks = {4, 8};
  plan.algorithms.assign(std::begin(kAlgorithms), std::end(kAlgorithms));
  plan.bytes = 1 << 20;
  plan.operations = 20;
  plan.network.tail = 3;
  plan.network.loss = 0.002;
  const auto ignore = [](double, double) {};
  plan.threads = 1;
  const auto one = run_plan(plan, ignore);
  plan.threads = 3;
  const auto three = run_plan(plan, ignore);
  plan.seed = 2;
  const auto other = run_plan(plan, ignore);
  constexpr std::size_t kOfEach = std::size(kAlgorithms);
  ASSERT_EQ(one.size(), 2 * kOfEach);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].completions, three[i].completions);
    EXPECT_EQ(one[i].lost_mean, three[i].lost_mean);
    EXPECT_NE(one[i].completions, other[i].completions);
    EXPECT_EQ(one[i].ranks, i < kOfEach ? 4u : 8u);
    EXPECT_EQ(one[i].algorithm, kAlgorithms[i % kOfEach]);
  }
}

TEST(ScaleModel, trains__longer_ones_change_little) {
  Plan plan = quiet_plan();
  plan.network.loss = 0.001;
  plan.operations = 15;
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::bounded}) {
    plan.train_packets = 1;
    const Duration fine = p50(run(plan, algorithm, 16));
    plan.train_packets = 4;
    expect_near(p50(run(plan, algorithm, 16)), fine, 0.2);
  }
}

TEST(ScaleModel, check__names_what_cannot_be) {
  Plan plan = quiet_plan();
  plan.ranks = {8};
  EXPECT_TRUE(check(plan));
  plan.network.queue_bytes = 1000;
  EXPECT_NE(check(plan).error().message.find("--queue 1000"), std::string::npos);
  plan = quiet_plan();
  plan.ranks = {1};
  EXPECT_NE(check(plan).error().message.find("--ranks 1"), std::string::npos);
  plan.ranks = {12};
  plan.algorithms = {Algorithm::late_rank};
  EXPECT_NE(check(plan).error().message.find("late-rank: 12 ranks"), std::string::npos);
  plan = quiet_plan();
  plan.ranks = {8};
  plan.bytes = 7;
  EXPECT_NE(check(plan).error().message.find("--bytes 7"), std::string::npos);
  plan = quiet_plan();
  plan.ranks = {8};
  plan.network.tail = 3;
  plan.network.stragglers = 0.5;
  EXPECT_NE(check(plan).error().message.find("--stragglers 50%"), std::string::npos);
}

TEST(Trains, lost__share_and_bounds) {
  LossDraw draw(0.01, 7);
  std::uint64_t lost = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::uint32_t of_this = draw.lost(10);
    ASSERT_LE(of_this, 10u);
    lost += of_this;
  }
  EXPECT_NEAR(static_cast<double>(lost), 10'000, 500);
  EXPECT_EQ(LossDraw(0, 1).lost(1000), 0u);
  EXPECT_EQ(LossDraw(1, 1).lost(1000), 1000u);
}

/// An operation that lost nothing.
BoundedOutcome outcome_of(Duration scatter, Duration whole) {
  BoundedOutcome outcome;
  outcome.stages[0].closed = outcome.scatter = scatter;
  outcome.stages[1].closed = outcome.median_time = whole;
  outcome.gather = whole - scatter;
  return outcome;
}

TEST(BoundsModel, learnt__from_the_ninth_operation_on) {
  BoundsModel bounds(std::nullopt, 0.001, 8);
  const BoundedOutcome outcome = outcome_of(6ms, 10ms);
  for (std::uint32_t i = 0; i < kCalibration; ++i) {
    EXPECT_TRUE(bounds.calibrating());
    EXPECT_EQ(bounds.next().exact, i < 9) << i;
    bounds.learn(outcome);
  }
  EXPECT_FALSE(bounds.calibrating());
  const Limits limits = bounds.next();
  expect_near(limits.whole, 11ms, 1e-6);          // the floor: 1.1 x the median
  expect_near(limits.gather, 4500us, 1e-3);       // 4 ms, and half of the range up to 11 ms - 6 ms
  expect_near(limits.early_wait[0], 60us, 1e-6);  // x has fallen from 10 to 1 %
  expect_near(limits.early_wait[1], 100us, 1e-6);
}

TEST(BoundsModel, learnt__late_ranks_count_with_the_time_that_they_would_have_taken) {
  BoundsModel bounds(std::nullopt, 0.001, 8);
  for (int i = 0; i < 20; ++i) bounds.learn(outcome_of(6ms, 10ms));
  BoundedOutcome late = outcome_of(6ms, 10ms);
  late.late = 1;
  late.last_late_start = 12ms;
  bounds.learn(late);
  expect_near(bounds.next().whole, 16ms, 0.05);  // one in 21: the target allows next to no loss
}

TEST(BoundsModel, given__counts_from_the_first_operation_and_the_gather_is_at_most_half) {
  BoundsModel bounds(20ms, 0.001, 8);
  EXPECT_FALSE(bounds.calibrating());
  EXPECT_FALSE(bounds.next().exact);
  EXPECT_EQ(bounds.next().whole, 20ms);
  EXPECT_EQ(bounds.next().gather, 5ms) << "a quarter while nothing is known";
  EXPECT_EQ(bounds.next().early_wait[1], Duration{});
  bounds.learn(outcome_of(2ms, 17ms));
  EXPECT_EQ(bounds.next().whole, 20ms);
  EXPECT_EQ(bounds.next().gather, 10ms);
}

TEST(BoundsModel, wait__doubles_above_a_tenth_of_the_target_and_falls_below_a_hundredth) {
  BoundsModel bounds(20ms, 0.01, 8);
  BoundedOutcome outcome = outcome_of(6ms, 10ms);
  outcome.stages[1].cut_early = 0.002;
  for (const double share : {0.20, 0.40, 0.50, 0.50}) {
    bounds.learn(outcome);
    EXPECT_DOUBLE_EQ(bounds.wait_share(), share);
  }
  outcome.stages[1].cut_early = 0.0005;  // in between: nothing changes
  bounds.learn(outcome);
  EXPECT_DOUBLE_EQ(bounds.wait_share(), 0.50);
  outcome.stages[1].cut_early = 0;
  for (int i = 0; i < 100; ++i) bounds.learn(outcome);
  EXPECT_DOUBLE_EQ(bounds.wait_share(), 0.01);
}

}  // namespace
}  // namespace tarpon::scale
