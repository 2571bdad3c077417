// Agreeing on the members of a shrunk communicator, message by message.
#include "collectives/mesh/shrink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tarpon::mesh {
namespace {

/// Hands over what `from` has to say to `to`; other messages are lost.
void pass(Shrinking& from, Rank from_rank, Shrinking& to, Rank to_rank) {
  for (const auto& [rank, frame] : from.take_outbox()) {
    if (rank != to_rank) continue;
    if (frame.kind == FrameKind::shrink) to.entered(from_rank);
    if (frame.kind == FrameKind::shrink_plan) to.planned(from_rank, frame.body);
  }
}

TEST(ShrinkTest, plan__of_the_lowest_live_rank_once_all_have_entered) {
  Shrinking one(1, 4), three(3, 4);
  for (Shrinking* rank : {&one, &three}) {
    rank->gone(0);
    rank->gone(2);
  }
  one.enter();
  EXPECT_FALSE(one.ready());
  EXPECT_EQ(one.lacking(), "rank 3 did not come");
  three.enter();
  EXPECT_FALSE(three.ready());
  EXPECT_EQ(three.lacking(), "no plan of rank 1");
  pass(three, 3, one, 1);
  ASSERT_TRUE(one.ready());
  one.decide("tcp://127.0.0.1:7");
  pass(one, 1, three, 3);
  for (Shrinking* rank : {&one, &three}) {
    const auto plan = rank->take_plan();
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->members, 0b1010u);
    EXPECT_EQ(plan->address, "tcp://127.0.0.1:7");
    EXPECT_FALSE(rank->take_plan());
  }
}

TEST(ShrinkTest, planner_dies__the_next_one_hears_of_those_who_entered_before) {
  Shrinking one(1, 3), two(2, 3);
  one.enter();
  two.enter();
  (void)one.take_outbox();  // both went to rank 0
  (void)two.take_outbox();
  two.gone(0);
  one.gone(0);
  pass(two, 2, one, 1);
  EXPECT_TRUE(one.ready());
}

TEST(ShrinkTest, planned__what_others_than_the_lowest_live_rank_say_is_ignored) {
  Shrinking two(2, 3);
  two.enter();
  two.planned(1, "6 tcp://127.0.0.1:7");
  EXPECT_FALSE(two.take_plan());
  two.gone(0);
  two.planned(1, "garbage");
  two.planned(1, "");
  two.planned(1, "3 tcp://127.0.0.1:7");  // without us
  EXPECT_FALSE(two.take_plan());
  two.planned(1, "6 tcp://127.0.0.1:7");
  EXPECT_TRUE(two.take_plan());
}

TEST(ShrinkTest, enter__forgets_a_plan_that_came_to_nothing) {
  Shrinking one(1, 2);
  one.planned(0, "3 tcp://127.0.0.1:7");  // not in shrink()
  one.enter();
  EXPECT_FALSE(one.take_plan());
  one.planned(0, "3 tcp://127.0.0.1:7");
  one.leave();
  one.enter();
  EXPECT_FALSE(one.take_plan());
}

TEST(ShrinkTest, told_of__counts_as_waiting_until_the_plan_but_not_for_it) {
  Shrinking zero(0, 3, Regroup::rejoin), one(1, 3, Regroup::rejoin);
  for (Shrinking* rank : {&zero, &one}) {
    rank->told_of(~0ull);  // of itself and of ranks that do not exist, too
    EXPECT_EQ(rank->waiting_others(), 0b111u & ~(rank == &zero ? 0b1u : 0b10u));
    rank->gone(2);
    EXPECT_EQ(rank->waiting_others(), rank == &zero ? 0b10u : 0b1u);
    rank->enter();
  }
  EXPECT_FALSE(zero.ready());
  EXPECT_EQ(zero.lacking(), "rank 1 did not come");
  zero.entered(1);
  ASSERT_TRUE(zero.ready());
  zero.decide("tcp://127.0.0.1:7");
  ASSERT_TRUE(zero.take_plan());
  EXPECT_EQ(zero.waiting_others(), 0u);
}

TEST(ShrinkTest, alone__the_last_one_needs_nobody) {
  Shrinking rank(63, 64);
  for (Rank other = 0; other < 63; ++other) rank.gone(other);
  rank.enter();
  ASSERT_TRUE(rank.ready());
  rank.decide("");
  EXPECT_EQ(rank.take_plan()->members, 1ull << 63);
}

}  // namespace
}  // namespace tarpon::mesh
