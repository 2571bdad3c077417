// Faults over a simulated control mesh, one at a time: votes that cannot be withdrawn, halves that
// exclude each other and come back, aborts of ranks that are out of the job, and a decider that
// dies or loses its streams after each event of a decision.
#include <gtest/gtest.h>

#include <functional>

#include "collectives/membership/frame.h"
#include "tests/simulation/mesh_job.h"
#include "tests/support/sanitized.h"

namespace tarpon::mesh_faults_test {
namespace {

using namespace testing_support;

/// Ranks 0 to 4; rank 2 alone has lost the packets of rank 4 for so long that it votes.
class StaleVoteTest : public testing::Test {
 protected:
  StaleVoteTest() {
    job_.run(1s);
    job_[2].needs_all = true;
    job_[2].deaf_to = bit(4);
    job_.run(MeshRank::kDeadAfter + 500ms);
  }
  /// Rank 2 hears rank 4 again.
  void withdraw() {
    job_[2].needs_all = false;
    job_[2].deaf_to = 0;
    job_[2].member().set_silent(0, 0, job_.world.now);
    job_[2].advance();
  }
  /// {0, 1} | {2, 3, 4}.
  void cut_in_two() {
    for (const Rank rank : {Rank{0}, Rank{1}}) job_.world.set_group(rank, 1);
    withdraw();
    for (Rank rank = 0; rank < job_.size(); ++rank) job_[rank].needs_all = true;
  }
  std::uint64_t live_to(Rank rank) { return job_[rank].member().facts().live(); }

  MeshJob job_{1, 5};
};

TEST_F(StaleVoteTest, withdrawn__while_the_stream_to_a_voter_was_broken) {
  job_.world.break_between(0, 2);
  while (job_.connected()) ASSERT_TRUE(job_.world.step(job_.world.now + 1s));
  withdraw();
  job_.run(3s);
  ASSERT_TRUE(job_.connected());
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    job_[rank].needs_all = true;
    job_[rank].deaf_to = bit(4);
  }
  job_.run(10s);
  for (Rank rank = 0; rank < job_.size(); ++rank) EXPECT_EQ(live_to(rank), 0b11111u);
}

TEST_F(StaleVoteTest, stream_broken__gives_a_minority_no_majority) {
  for (const Rank a : {Rank{0}, Rank{1}}) {
    for (const Rank b : {Rank{2}, Rank{3}, Rank{4}}) job_.world.break_between(a, b);
  }
  cut_in_two();
  job_.run(20s);
  for (const Rank rank : {Rank{0}, Rank{1}}) EXPECT_EQ(live_to(rank), 0b11111u);
  for (const Rank rank : {Rank{2}, Rank{3}, Rank{4}}) EXPECT_EQ(live_to(rank), 0b11100u);
}

// The streams break when what was sent on them stays unacknowledged for longer than kDeadAfter.
TEST_F(StaleVoteTest, partition__gives_a_minority_no_majority) {
  cut_in_two();
  job_.run(20s);
  for (const Rank rank : {Rank{0}, Rank{1}}) EXPECT_EQ(live_to(rank), 0b11111u);
  for (const Rank rank : {Rank{2}, Rank{3}, Rank{4}}) EXPECT_EQ(live_to(rank), 0b11100u);
}

/// A job of four that is cut into two halves, until each has excluded the other.
class HalvesTest : public testing::Test {
 protected:
  HalvesTest() {
    job_.run(1s);
    for (const Rank rank : {Rank{2}, Rank{3}}) job_.world.set_group(rank, 1);
    for (Rank rank = 0; rank < job_.size(); ++rank) job_[rank].needs_all = true;
    job_.run(5s);
    EXPECT_EQ(job_[1].member().facts().live(), 0b0011u);
    EXPECT_EQ(job_[2].member().facts().live(), 0b1100u);
  }
  void heal() {
    for (Rank rank = 0; rank < job_.size(); ++rank) job_.world.set_group(rank, 0);
    job_.run(20s);
  }
  void expect_rejoined(std::uint64_t members, Rank planner) {
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if ((members & bit(rank)) == 0) continue;
      ASSERT_EQ(job_[rank].rejoin_plans.size(), 1u) << rank;
      EXPECT_EQ(job_[rank].rejoin_plans[0].members, members);
      EXPECT_EQ(job_[rank].rejoin_plans[0].planner, planner);
    }
  }
  MeshJob job_{1, 4};
};

TEST_F(HalvesTest, healed__are_dead_to_each_other_and_rejoin_in_any_order) {
  heal();
  for (const Rank rank : {Rank{3}, Rank{0}, Rank{2}, Rank{1}}) {
    EXPECT_EQ(job_[rank].member().facts().live(), 0u);
    job_[rank].member().plans(Regroup::rejoin).enter();
    job_[rank].advance();
    job_.run(1s);
  }
  expect_rejoined(0b1111, 0);
}

TEST_F(HalvesTest, healed__rejoin_without_a_rank_that_was_killed) {
  job_.world.crash(0);
  heal();
  for (const Rank rank : {Rank{3}, Rank{2}, Rank{1}}) {
    job_[rank].member().plans(Regroup::rejoin).enter();
    job_[rank].advance();
  }
  job_.run(1s);
  expect_rejoined(0b1110, 1);
}

// The others learn of a rank in rejoin() by a verdict, also where that rank decides.
TEST(RejoinTest, verdict__names_a_rank_that_waits_in_rejoin_also_the_decider) {
  for (const Rank who : {Rank{0}, Rank{1}}) {
    MeshJob job(1, 3);
    job.run(1s);
    job[who].member().wait_for_plan(Regroup::rejoin, job.world.now);
    job[who].advance();
    job.run(10ms);
    for (Rank rank = 0; rank < job.size(); ++rank) {
      if (rank == who) continue;
      job[rank].member().report(5, {}, 5s, job.world.now);
      job[rank].advance();
    }
    job.run(200ms);
    for (Rank rank = 0; rank < job.size(); ++rank) {
      if (rank == who) continue;
      const auto verdict = job[rank].member().verdict(5);
      ASSERT_TRUE(verdict) << "its report does not come, and is not waited for";
      EXPECT_EQ(verdict->verdict, Verdict::apply);
      EXPECT_EQ(verdict->rejoin, bit(who));
    }
    job[who].member().stop_waiting(Regroup::rejoin, job.world.now);
    job[who].advance();
    job.run(10ms);
    for (Rank rank = 0; rank < job.size(); ++rank) {
      job[rank].member().report(6, {}, 5s, job.world.now);
      job[rank].advance();
    }
    job.run(200ms);
    for (Rank rank = 0; rank < job.size(); ++rank) {
      const auto verdict = job[rank].member().verdict(6);
      ASSERT_TRUE(verdict);
      EXPECT_EQ(verdict->rejoin, 0u) << "it waits no longer";
    }
  }
}

class AbortTest : public testing::Test {
 protected:
  AbortTest() { job_.run(1s); }
  void abort(Rank rank) {
    job_[rank].member().abort("enough", true);
    job_[rank].advance();
  }
  void leave(Rank rank) {
    job_[rank].member().leave({}, job_.world.now);
    job_[rank].advance();
  }
  void evict(Rank out) {
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if (rank == out) continue;
      job_[rank].member().wish_eviction(bit(out), job_.world.now);
      job_[rank].advance();
    }
  }
  /// Ranks that heard of the abort of `rank`.
  std::uint64_t hearers(Rank rank) {
    std::uint64_t ranks = 0;
    for (Rank one = 0; one < job_.size(); ++one) {
      if (job_[one].aborted_by.count(rank) != 0) ranks |= bit(one);
    }
    return ranks;
  }
  MeshJob job_{1, 4};
};

TEST_F(AbortTest, evicted__ends_nothing_at_the_others) {
  evict(2);
  job_.run(5s);
  ASSERT_EQ(job_[2].member().facts().standing(2), Standing::evicted);
  abort(2);
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{3}}) job_.world.break_between(2, rank);
  job_.run(5s);
  ASSERT_TRUE(job_.connected());
  EXPECT_EQ(hearers(2), 0u);
}

TEST_F(AbortTest, evicted__without_knowing_it_ends_nothing_at_the_others) {
  job_.world.set_group(2, 1);
  evict(2);
  job_.run(5s);
  abort(2);
  job_.world.set_group(2, 0);
  job_.run(20s);
  ASSERT_EQ(job_[2].member().facts().standing(2), Standing::evicted);
  EXPECT_EQ(hearers(2), 0u);
}

TEST_F(AbortTest, left__ends_nothing_at_the_others) {
  leave(2);
  job_.run(1s);
  abort(2);
  job_.run(1s);
  EXPECT_EQ(hearers(2), 0u);
}

TEST_F(AbortTest, left_after_it__ends_the_job_of_ranks_that_hear_of_leaving_first) {
  job_.world.break_between(2, 3);
  while (job_.connected()) ASSERT_TRUE(job_.world.step(job_.world.now + 1s));
  abort(2);
  leave(2);
  job_.run(1s);
  ASSERT_TRUE(job_.connected());
  EXPECT_EQ(hearers(2), 0b1011u);
}

/// Rank 0 decides, and fails after each event of the decision in turn (sanitizers: every third).
class DeciderTest : public testing::Test {
 protected:
  enum class Fault : std::uint8_t { death, death_with_losses, death_of_two, broken_streams, kinds };
  static constexpr Rank kRanks = 5;
  static constexpr int kEvents = 140;  // more than a decision takes

  /// `begin` starts a decision, `judge` sees what has come of it long after the fault.
  void each_case(const std::function<void(MeshJob&)>& begin,
                 const std::function<void(MeshJob&)>& judge) {
    for (std::uint64_t seed = 1; seed <= (kSanitizer ? 1 : 2); ++seed) {
      for (int fault = 0; fault < static_cast<int>(Fault::kinds); ++fault) {
        for (int event = 0; event < kEvents && !HasFailure(); event += kSanitizer ? 3 : 1) {
          SCOPED_TRACE("seed " + std::to_string(seed) + ", fault " + std::to_string(fault) +
                       " after event " + std::to_string(event));
          MeshJob job(seed, kRanks);
          job.run(1s);
          ASSERT_TRUE(job.connected());
          begin(job);
          step(job, event);
          fail(job, static_cast<Fault>(fault), event);
          job.run(6s);
          ASSERT_FALSE(job.livelock);
          judge(job);
        }
      }
    }
  }

  static std::vector<Rank> running(const MeshJob& job) {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      if (job.runs(rank)) ranks.push_back(rank);
    }
    return ranks;
  }

  static void enter_shrink(MeshJob& job, Rank rank) {
    job[rank].member().plans(Regroup::shrink).enter();
    job[rank].advance();
  }

  /// The running ranks have the same new plan, of their own planner.
  static bool shrunk(MeshJob& job, const std::vector<std::size_t>& plans_before) {
    const std::vector<Rank> ranks = running(job);
    std::uint64_t members = 0;
    for (const Rank rank : ranks) members |= bit(rank);
    for (const Rank rank : ranks) {
      const auto& plans = job[rank].plans;
      if (plans.size() != plans_before[rank] + 1) return false;
      const ShrinkPlan& plan = plans.back();
      if (plan.planner != ranks.front() || plan.members != members) return false;
      if (plan.address != job[ranks.front()].plans.back().address) return false;
    }
    return true;
  }

 private:
  static void step(MeshJob& job, int events) {
    for (int i = 0; i < events; ++i) job.world.step(job.world.now + 20ms);
  }
  static void fail(MeshJob& job, Fault fault, int event) {
    if (fault == Fault::broken_streams) {
      for (Rank peer = 1; peer < kRanks; ++peer) job.world.break_between(0, peer);
      return;
    }
    if (fault == Fault::death_with_losses) {  // some peers get what is under way, others do not
      for (Rank peer = 1; peer < kRanks; ++peer) {
        if (((event % 14 + 1) >> (peer - 1) & 1) != 0) job.world.break_between(0, peer);
      }
    }
    job.world.crash(0);
    if (fault != Fault::death_of_two) return;
    step(job, 20 + event * 7 % 60);  // the next one begins to decide
    job.world.crash(1);
  }
};

TEST_F(DeciderTest, verdict__is_the_same_on_all_ranks) {
  std::map<Verdict, int> given;
  const auto begin = [](MeshJob& job) {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      // The report of rank 0 makes the difference, where it counts.
      job[rank].member().report(1, {.lost_fraction = rank == 0 ? 0.2 : 0.05}, 500ms, job.world.now);
      job[rank].advance();
    }
  };
  each_case(begin, [&](MeshJob& job) {
    std::optional<StepVerdict> first;
    for (const Rank rank : running(job)) {
      const auto verdict = job[rank].member().verdict(1);
      ASSERT_TRUE(verdict) << "rank " << rank;
      EXPECT_EQ(verdict->detail.find("replicas differ"), std::string::npos) << verdict->detail;
      if (!first) first = verdict;
      EXPECT_TRUE(verdict->same(*first)) << "rank " << rank;
    }
    ++given[first->verdict];
  });
  EXPECT_GT(given[Verdict::apply], 0);
  EXPECT_GT(given[Verdict::skip], 0);
  EXPECT_EQ(given[Verdict::halt], 0);
}

TEST_F(DeciderTest, epoch_record__is_the_same_on_all_ranks) {
  const auto begin = [](MeshJob& job) {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      for (int call = 0; call < 80; ++call) {
        job[rank].member().note_call({.lost = 0.2}, job.world.now);
      }
      job[rank].advance();
    }
  };
  each_case(begin, [](MeshJob& job) {
    const std::vector<Rank> ranks = running(job);
    for (const Rank rank : ranks) {
      ASSERT_FALSE(job[rank].epochs.empty()) << "rank " << rank;
      const EpochRecord& record = job[rank].epochs.back();
      EXPECT_TRUE(record.setting.coded) << "rank " << rank;
      EXPECT_EQ(record, job[ranks.front()].epochs.back()) << "rank " << rank;
    }
  });
}

// When the planner dies, some ranks may have its plan, and the others none. Nobody meets there.
TEST_F(DeciderTest, shrink__succeeds_the_second_time) {
  int again = 0;
  const auto begin = [](MeshJob& job) {
    for (Rank rank = 0; rank < kRanks; ++rank) enter_shrink(job, rank);
  };
  each_case(begin, [&](MeshJob& job) {
    if (shrunk(job, std::vector<std::size_t>(kRanks))) return;
    ++again;
    ASSERT_FALSE(job.runs(0)) << "no rank has died";
    std::vector<std::size_t> before;
    for (Rank rank = 0; rank < kRanks; ++rank) before.push_back(job[rank].plans.size());
    for (const Rank rank : running(job)) {
      if (job[rank].plans.size() > before[rank]) continue;  // it came before the deadline
      job[rank].member().plans(Regroup::shrink).leave();    // the deadline, and the second call
      enter_shrink(job, rank);
      job.run(100us * (again * 37 % 11));
    }
    job.run(3s);
    EXPECT_TRUE(shrunk(job, before)) << "the second time";
  });
  EXPECT_GT(again, 0);
}

}  // namespace
}  // namespace tarpon::mesh_faults_test
