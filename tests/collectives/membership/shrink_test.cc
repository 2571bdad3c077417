// Agreeing on the members of a shrunk communicator, message by message.
#include "collectives/membership/shrink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace tarpon::mesh::shrink_test {
namespace {

/// One rank: its facts and its rules.
struct One {
  One(Rank rank, std::uint32_t world_size, Regroup what = Regroup::shrink)
      : facts(world_size), rules(rank, facts, what) {}
  void gone(Rank rank, Standing standing = Standing::dead) {
    facts.learn({.rank = rank, .standing = standing, .evidence = {}, .next_numbers = {}});
  }
  Shrinking* operator->() { return &rules; }
  Facts facts;
  Shrinking rules;
};

/// Hands over what `from` has to say to `to`; other messages are lost.
void pass(One& from, Rank from_rank, One& to, Rank to_rank) {
  for (const auto& [rank, frame] : from->take_outbox()) {
    if (rank != to_rank) continue;
    switch (frame.kind) {
      case FrameKind::shrink:
      case FrameKind::rejoin:
        to->receive(from_rank, frame.body);
        break;
      case FrameKind::shrink_plan:
      case FrameKind::rejoin_plan:
        to->planned(from_rank, frame.body);
        break;
      default:
        FAIL() << static_cast<int>(frame.kind);
    }
  }
}

/// Four ranks in rejoin() after a cut into halves: each is dead to the other half, and knows it.
class HealedTest : public testing::Test {
 protected:
  HealedTest() {
    for (Rank rank = 0; rank < 4; ++rank) {
      ranks_.emplace_back(rank, 4, Regroup::rejoin);
      for (Rank of = 0; of < 4; ++of) ranks_.back().gone(of);
    }
  }
  One& operator[](Rank rank) { return ranks_[rank]; }
  void enter(Rank rank) {
    ranks_[rank]->enter();
    for (const auto& [to, frame] : ranks_[rank]->take_outbox()) {
      ranks_[to]->receive(rank, frame.body);
    }
  }
  std::deque<One> ranks_;
};

TEST(ShrinkTest, plan__of_the_lowest_live_rank_once_all_have_entered) {
  One one(1, 4), three(3, 4);
  for (One* rank : {&one, &three}) {
    rank->gone(0);
    rank->gone(2);
  }
  one->enter();
  EXPECT_FALSE(one->ready());
  EXPECT_EQ(one->lacking(), "rank 3 did not come");
  three->enter();
  EXPECT_FALSE(three->ready());
  EXPECT_EQ(three->lacking(), "rank 1 did not come");
  three->receive(1, "\1");
  EXPECT_EQ(three->lacking(), "no plan from rank 1");
  EXPECT_EQ(three->needed(), 0b0010u);
  pass(three, 3, one, 1);
  ASSERT_TRUE(one->ready());
  one->decide("tcp://127.0.0.1:7");
  pass(one, 1, three, 3);
  for (One* rank : {&one, &three}) {
    const auto plan = rank->rules.take_plan();
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->members, 0b1010u);
    EXPECT_EQ(plan->address, "tcp://127.0.0.1:7");
    EXPECT_FALSE(rank->rules.take_plan());
  }
}

TEST(ShrinkTest, planner_dies__the_next_one_knows_the_ranks_that_entered_before) {
  One one(1, 3), two(2, 3);
  one->enter();
  two->enter();
  pass(two, 2, one, 1);
  EXPECT_FALSE(one->ready());
  two.gone(0);
  one.gone(0);
  EXPECT_TRUE(one->ready());
}

TEST(ShrinkTest, greet__repeats_what_a_broken_connection_may_have_lost) {
  One one(1, 3), two(2, 3);
  for (One* rank : {&one, &two}) {
    rank->gone(0);
    rank->rules.enter();
    (void)rank->rules.take_outbox();  // lost
  }
  EXPECT_FALSE(one->ready());
  two->greet(1);
  pass(two, 2, one, 1);
  ASSERT_TRUE(one->ready());
  one->decide("tcp://127.0.0.1:7");
  (void)one->take_outbox();  // lost
  two->greet(1);
  pass(two, 2, one, 1);
  pass(one, 1, two, 2);
  EXPECT_TRUE(two->take_plan());
}

TEST(ShrinkTest, plan__is_not_repeated_to_a_rank_that_has_entered_again) {
  One zero(0, 2), one(1, 2);
  zero->enter();
  one->enter();
  pass(one, 1, zero, 0);
  ASSERT_TRUE(zero->ready());
  zero->decide("tcp://127.0.0.1:7");
  ASSERT_TRUE(zero->take_plan());
  (void)zero->take_outbox();  // lost
  one->leave();
  one->enter();
  (void)one->take_outbox();  // lost
  zero->greet(1);            // they are connected again
  one->greet(0);
  pass(one, 1, zero, 0);
  pass(zero, 0, one, 1);
  EXPECT_FALSE(one->take_plan());
  zero->enter();
  ASSERT_TRUE(zero->ready());
  zero->decide("tcp://127.0.0.1:8");
  pass(zero, 0, one, 1);
  const auto plan = one->take_plan();
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->address, "tcp://127.0.0.1:8");
}

TEST(ShrinkTest, rejoin__of_a_dead_rank_that_comes_back) {
  One one(1, 3, Regroup::rejoin), two(2, 3, Regroup::rejoin);
  for (One* rank : {&one, &two}) {
    rank->gone(0);  // silent for too long
    rank->rules.enter();
  }
  one->receive(2, "\1");
  one->receive(0, "\1");
  ASSERT_TRUE(one->ready());
  one->decide("tcp://127.0.0.1:7");
  pass(one, 1, two, 2);
  for (One* rank : {&one, &two}) {
    const auto plan = rank->rules.take_plan();
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->members, 0b111u);
    // Rank 1 listens at the address, so it is rank 0.
    EXPECT_EQ(plan->new_rank(1), 0u);
    EXPECT_EQ(plan->new_rank(0), 1u);
    EXPECT_EQ(plan->new_rank(2), 2u);
  }
}

TEST_F(HealedTest, rejoin__of_all_when_no_rank_is_live_or_evicted) {
  auto& ranks = *this;
  for (const Rank rank : {Rank{3}, Rank{1}, Rank{2}}) enter(rank);
  EXPECT_FALSE(ranks[1]->ready());
  EXPECT_EQ(ranks[1]->lacking(), "rank 0 did not come");
  enter(0);
  EXPECT_EQ(ranks[3]->lacking(), "no plan from rank 0");
  for (const Rank rank : {Rank{1}, Rank{2}, Rank{3}}) EXPECT_FALSE(ranks[rank]->ready());
  ASSERT_TRUE(ranks[0]->ready());
  ranks[0]->decide("tcp://127.0.0.1:7");
  for (const auto& [to, frame] : ranks[0]->take_outbox()) ranks[to]->planned(0, frame.body);
  for (Rank rank = 0; rank < 4; ++rank) {
    const auto plan = ranks[rank]->take_plan();
    ASSERT_TRUE(plan) << rank;
    EXPECT_EQ(plan->members, 0b1111u);
    EXPECT_EQ(plan->new_rank(rank), rank);
  }
}

TEST_F(HealedTest, rejoin__waits_for_no_rank_whose_process_is_gone) {
  auto& ranks = *this;
  enter(0);  // and is killed
  for (const Rank rank : {Rank{1}, Rank{2}, Rank{3}}) enter(rank);
  EXPECT_FALSE(ranks[1]->ready());
  ranks[1]->gone(0);
  ASSERT_TRUE(ranks[1]->ready());
  ranks[1]->decide("tcp://127.0.0.1:7");
  EXPECT_EQ(ranks[2]->lacking(), "no plan from rank 0");  // without the proof
  for (const auto& [to, frame] : ranks[1]->take_outbox()) {
    if (to != 0) ranks[to]->planned(1, frame.body);
  }
  for (const Rank rank : {Rank{1}, Rank{2}, Rank{3}}) {
    const auto plan = ranks[rank]->take_plan();
    ASSERT_TRUE(plan) << rank;
    EXPECT_EQ(plan->members, 0b1110u);
    EXPECT_EQ(plan->new_rank(rank), rank - 1);
  }
}

TEST(ShrinkTest, lacking__names_no_rank_that_does_not_exist) {
  One rank(1, 3, Regroup::rejoin);
  for (Rank other = 0; other < 3; ++other) rank.gone(other, Standing::left);
  rank->enter();
  EXPECT_FALSE(rank->ready());
  EXPECT_EQ(rank->lacking(), "every rank has left");
}

TEST(ShrinkTest, planned__what_others_than_the_lowest_live_rank_say_is_ignored) {
  One two(2, 3);
  two->enter();
  two->planned(1, "6 tcp://127.0.0.1:7");
  EXPECT_FALSE(two->take_plan());
  two.gone(0);
  two->planned(1, "garbage");
  two->planned(1, "");
  two->planned(1, "3 tcp://127.0.0.1:7");  // without us
  EXPECT_FALSE(two->take_plan());
  two->planned(1, "6 tcp://127.0.0.1:7");
  EXPECT_TRUE(two->take_plan());
}

TEST(ShrinkTest, enter__forgets_a_plan_that_came_to_nothing) {
  One one(1, 2);
  one->planned(0, "3 tcp://127.0.0.1:7");  // not in shrink()
  one->enter();
  EXPECT_FALSE(one->take_plan());
  one->planned(0, "3 tcp://127.0.0.1:7");
  one->leave();
  one->enter();
  EXPECT_FALSE(one->take_plan());
}

TEST(ShrinkTest, leave__is_told_so_that_no_plan_counts_on_a_rank_that_gave_up) {
  One zero(0, 2), one(1, 2);
  one->enter();
  one->leave();
  pass(one, 1, zero, 0);
  zero->enter();
  EXPECT_FALSE(zero->ready());
  zero->receive(1, "");  // malformed
  zero->receive(1, "\1x");
  EXPECT_FALSE(zero->ready());
  one->enter();
  pass(one, 1, zero, 0);
  EXPECT_TRUE(zero->ready());
}

TEST(ShrinkTest, told_of__counts_as_waiting_until_the_plan_but_not_for_it) {
  One zero(0, 3, Regroup::rejoin), one(1, 3, Regroup::rejoin);
  for (One* rank : {&zero, &one}) {
    rank->rules.told_of(~0ull);  // of itself and of ranks that do not exist, too
    EXPECT_EQ(rank->rules.waiting_others(), 0b111u & ~(rank == &zero ? 0b1u : 0b10u));
    rank->gone(2);
    EXPECT_EQ(rank->rules.waiting_others(), rank == &zero ? 0b10u : 0b1u);
    rank->rules.enter();
  }
  EXPECT_FALSE(zero->ready());
  EXPECT_EQ(zero->lacking(), "rank 1 did not come");
  zero->receive(1, "\1");
  ASSERT_TRUE(zero->ready());
  zero->decide("tcp://127.0.0.1:7");
  ASSERT_TRUE(zero->take_plan());
  EXPECT_EQ(zero->waiting_others(), 0u);
}

TEST(ShrinkTest, alone__the_last_one_needs_nobody) {
  One rank(63, 64);
  for (Rank other = 0; other < 63; ++other) rank.gone(other);
  rank->enter();
  ASSERT_TRUE(rank->ready());
  rank->decide("");
  EXPECT_EQ(rank->take_plan()->members, 1ull << 63);
}

}  // namespace
}  // namespace tarpon::mesh::shrink_test
