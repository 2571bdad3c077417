// Learnt bounds and ranks that are late: a call waits for the data of a live rank where a training
// step could not do without it, and for nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/simulated_job.h"

namespace tarpon::testing_support::hold_test {
namespace {

using Reports = std::vector<Report>;
using Delays = std::vector<Duration>;

/// Ranks that call again and again, each as late as a test says.
class Calls {
 public:
  Calls(std::uint16_t ranks, std::uint64_t count)
      : job_({.ranks = ranks,
              .slot_bytes = 1408,
              .links = FabricOptions{.ingress = {.bits_per_second = 1e9, .queue_bytes = 1 << 20}}}),
        buffers_(ranks, count, false) {}

  SimulatedJob& job() { return job_; }

  std::shared_ptr<PendingCall> submit(Rank rank) {
    AllreduceArguments one = buffers_.bounded_arguments(rank, ReduceOp::sum, bound);
    one.bound_rule = rule;
    one.shares = shares;
    return job_.submit(rank, one);
  }

  /// One call in which rank r begins `late`[r] after the first ones.
  Reports run(const Delays& late) {
    std::vector<Rank> order(job_.ranks());
    for (Rank rank = 0; rank < job_.ranks(); ++rank) order[rank] = rank;
    std::stable_sort(order.begin(), order.end(), [&](Rank a, Rank b) { return late[a] < late[b]; });
    std::vector<std::shared_ptr<PendingCall>> calls(job_.ranks());
    const Time start = job_.now();
    for (const Rank rank : order) {
      if (start + late[rank] > job_.now()) job_.run_for(start + late[rank] - job_.now());
      calls[rank] = submit(rank);
    }
    EXPECT_TRUE(job_.finish());
    Reports reports;
    for (const auto& call : calls) reports.push_back(call->report);
    return reports;
  }

  Reports run_in_time() { return run(Delays(job_.ranks(), Duration::zero())); }

  Reports run_with_late(Rank rank, Duration late) {
    Delays all(job_.ranks(), Duration::zero());
    all[rank] = late;
    return run(all);
  }

  /// Makes as many calls as a learnt bound needs. Returns the time of the last one.
  Duration learn() {
    for (int call = 0; call < 60; ++call) run_in_time();
    return run_in_time()[0].elapsed;
  }

  BoundRule rule = BoundRule::learnt;
  Shares shares;
  std::optional<Duration> bound;

 private:
  SimulatedJob job_;
  Buffers<float> buffers_;
};

constexpr std::uint64_t kCount = 30'000;

TEST(HoldTest, late_rank__is_waited_for_and_nothing_is_lost) {
  Calls calls(4, kCount);
  const Duration usual = calls.learn();
  for (const int tenths : {1, 5, 10, 20, 50}) {
    const Duration late = usual * tenths / 10;
    const Reports reports = calls.run_with_late(3, late);
    for (const Report& report : reports) {
      EXPECT_EQ(report.status, Status::complete) << tenths << ": " << report.detail;
    }
    EXPECT_LE(reports[0].elapsed, late + usual * 3 / 2) << tenths;
    EXPECT_LE(reports[3].elapsed, usual * 3 / 2) << tenths;
    if (tenths == 1) {
      EXPECT_EQ(reports[0].held, Duration::zero());
    } else if (tenths >= 20) {
      EXPECT_GT(reports[0].held, Duration::zero()) << tenths;
    }
  }
}

TEST(HoldTest, late_ranks_in_turn__are_waited_for) {
  Calls calls(4, kCount);
  const Duration usual = calls.learn();
  for (Rank rank = 0; rank < 4; ++rank) {
    for (const Report& report : calls.run({usual * 3, usual * (rank % 2), usual * 6, usual * 2})) {
      EXPECT_EQ(report.status, Status::complete) << report.detail;
    }
    for (const Report& report : calls.run_with_late(rank, usual * 4)) {
      EXPECT_EQ(report.status, Status::complete) << report.detail;
    }
  }
}

TEST(HoldTest, half_of_the_ranks_late__are_waited_for) {
  Calls calls(4, kCount);
  const Duration usual = calls.learn();
  const Duration late = usual * 5;
  for (const Report& report : calls.run({{}, {}, late, late})) {
    EXPECT_EQ(report.status, Status::complete) << report.detail;
  }
}

TEST(HoldTest, given_bound__is_kept_to_the_letter) {
  Calls calls(4, kCount);
  const Duration usual = calls.learn();
  calls.rule = BoundRule::automatic;
  calls.bound = usual * 3 / 2;
  const Reports reports = calls.run_with_late(3, usual * 5);
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) {
    EXPECT_EQ(reports[rank].status, Status::partial) << reports[rank].detail;
    EXPECT_EQ(reports[rank].held, Duration::zero());
    EXPECT_LE(reports[rank].elapsed, *calls.bound + 1ms);
  }
}

TEST(HoldTest, bound_beside_a_learnt_one__is_kept_to_the_letter) {
  Calls calls(4, kCount);
  const Duration usual = calls.learn();
  calls.bound = usual * 4;
  const Reports reports = calls.run_with_late(3, usual * 10);
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) {
    EXPECT_EQ(reports[rank].status, Status::partial) << reports[rank].detail;
    EXPECT_EQ(reports[rank].held, Duration::zero());
    EXPECT_LE(reports[rank].elapsed - reports[rank].clock_start, reports[rank].bound + 1ms);
  }
}

/// Ranks 0 to 2 make one call. Returns their reports.
Reports run_without_rank_3(Calls& calls) {
  std::vector<std::shared_ptr<PendingCall>> others;
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) others.push_back(calls.submit(rank));
  const auto over = [&] {
    return std::all_of(others.begin(), others.end(),
                       [](const auto& one) { return one->done.load(); });
  };
  EXPECT_TRUE(calls.job().run_until(over, 10s));
  Reports reports;
  for (const auto& one : others) reports.push_back(one->report);
  return reports;
}

TEST(HoldTest, silent_rank__is_waited_for_until_it_is_suspect) {
  Calls calls(4, kCount);
  calls.learn();
  calls.job().stop(3);
  std::vector<Duration> took;
  for (int call = 0; call < 3; ++call) {
    const Time start = calls.job().now();
    for (const Report& report : run_without_rank_3(calls)) {
      EXPECT_EQ(report.status, Status::partial) << report.detail;
      EXPECT_THAT(report.late_ranks, testing::ElementsAre(3));
    }
    took.push_back(calls.job().now() - start);
  }
  EXPECT_GE(took[0], 250ms);
  EXPECT_LE(took[0], 600ms);
  EXPECT_LE(took[2], 20ms) << "a suspect rank is left out";
}

/// It answers, but does something else than this call.
TEST(HoldTest, rank_that_never_comes__costs_its_own_data_at_the_deadline) {
  Calls calls(4, kCount);
  calls.learn();
  for (const Report& report : run_without_rank_3(calls)) {
    EXPECT_EQ(report.status, Status::partial) << report.detail;
    EXPECT_NEAR(report.lost_fraction, 7.0 / 16, 0.01) << "the others have each other's shards";
    EXPECT_THAT(report.void_shards, testing::ElementsAre(3));
    EXPECT_GT(report.elapsed, 3900ms);
    EXPECT_LE(report.elapsed, 4001ms);
  }
}

TEST(HoldTest, rank_in_rejoin__is_not_waited_for) {
  Calls calls(4, kCount);
  calls.learn();
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) {
    calls.job()[rank].endpoint().set_rejoining(0b1000, calls.job().now());
  }
  for (const Report& report : run_without_rank_3(calls)) {
    EXPECT_EQ(report.status, Status::partial) << report.detail;
    EXPECT_EQ(report.held, Duration::zero());
    EXPECT_LE(report.elapsed - report.clock_start, report.bound + 1ms);
  }
}

TEST(HoldTest, rank_in_rejoin__is_not_waited_for_before_a_bound_is_learnt) {
  Calls calls(4, kCount);
  for (const Rank rank : {Rank{0}, Rank{1}}) calls.submit(rank);
  const auto open = calls.submit(2);
  calls.job().run_for(20ms);
  ASSERT_FALSE(open->done.load()) << "the bound is the deadline as yet";
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) {
    calls.job()[rank].endpoint().set_rejoining(0b1000, calls.job().now());
  }
  calls.job().run_for(20ms);
  ASSERT_TRUE(open->done.load());
  EXPECT_EQ(open->report.status, Status::partial) << open->report.detail;
  const auto later = calls.submit(2);  // while it waits in rejoin()
  for (const Rank rank : {Rank{0}, Rank{1}}) calls.submit(rank);
  calls.job().run_for(20ms);
  EXPECT_TRUE(later->done.load());
}

TEST(HoldTest, ranks_in_rejoin__do_not_keep_the_clock_from_starting) {
  Calls calls(5, kCount);
  calls.bound = 30ms;
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    calls.job()[rank].endpoint().set_rejoining(0b11100, calls.job().now());
  }
  const auto alone = calls.submit(0);  // one of two live ranks has begun
  calls.job().run_for(60ms);
  ASSERT_TRUE(alone->done.load());
  EXPECT_EQ(alone->report.status, Status::partial) << alone->report.detail;
}

TEST(HoldTest, rank_in_rejoin__still_serves_the_call_that_it_had_begun) {
  Calls calls(4, kCount);
  const Duration usual = calls.learn();
  std::vector<std::shared_ptr<PendingCall>> open;
  for (Rank rank = 0; rank < 4; ++rank) open.push_back(calls.submit(rank));
  calls.job().run_for(usual / 2);
  ASSERT_FALSE(open[0]->done.load());
  calls.job()[0].endpoint().set_rejoining(0b1000, calls.job().now());
  ASSERT_TRUE(calls.job().finish());
  EXPECT_EQ(open[0]->report.status, Status::complete) << open[0]->report.detail;
}

TEST(HoldTest, rank_that_one_owner_left_out__is_no_loss_of_the_network) {
  Calls calls(4, kCount);
  calls.learn();
  calls.shares = Shares(std::vector<double>{1, 1, 1, 0});
  calls.job()[0].endpoint().set_rejoining(0b1000, calls.job().now());
  std::vector<std::shared_ptr<PendingCall>> open;
  for (Rank rank = 0; rank < 4; ++rank) {
    if (rank == 3) calls.job().run_for(10ms);  // rank 0 has closed the scatter
    open.push_back(calls.submit(rank));
  }
  ASSERT_TRUE(calls.job().finish());
  for (const Rank rank : {Rank{1}, Rank{2}, Rank{3}}) {
    const LossCauses& causes = open[rank]->report.causes;
    EXPECT_NEAR(causes.late_ranks, 1.0 / 12, 1e-3) << open[rank]->report.detail;
    EXPECT_EQ(causes.of_network(), 0.0);
  }
}

TEST(HoldTest, one_rank_of_many__is_not_waited_for) {
  Calls calls(42, 42 * 16);
  const Duration usual = calls.learn();
  const Reports reports = calls.run_with_late(3, usual * 8);
  for (Rank rank = 0; rank < 42; ++rank) {
    if (rank == 3) continue;
    EXPECT_EQ(reports[rank].status, Status::partial) << reports[rank].detail;
    EXPECT_EQ(reports[rank].held, Duration::zero());
    EXPECT_LE(reports[rank].elapsed - reports[rank].clock_start, reports[rank].bound + 1ms);
  }
}

/// Rank 3 is calls behind. Rank 2 comes late to a call that ranks 0 and 1 have ended without both.
TEST(HoldTest, late_rank__learns_from_its_peers_that_a_shard_is_void) {
  Calls calls(4, kCount);
  calls.learn();
  calls.rule = BoundRule::automatic;
  calls.bound = 15ms;
  for (const Rank rank : {Rank{0}, Rank{1}}) calls.submit(rank);
  calls.job().run_for(40ms);
  const auto late = calls.submit(2);
  ASSERT_TRUE(calls.job().run_until([&] { return late->done.load(); }, 5s));
  EXPECT_EQ(late->report.status, Status::late_self) << late->report.detail;
  EXPECT_LE(late->report.elapsed, 25ms) << "its own bound and 10 ms";
}

}  // namespace
}  // namespace tarpon::testing_support::hold_test
