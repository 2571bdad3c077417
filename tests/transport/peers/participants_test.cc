// Which ranks take part in an operation.
#include "transport/peers/participants.h"

#include <gtest/gtest.h>

#include "transport/pair_tag.h"

namespace tarpon::participants_test {
namespace {

TEST(ParticipantsTest, set_dead__it_takes_part_in_nothing) {
  Participants participants(4);
  participants.set_dead(2);
  EXPECT_TRUE(participants.is_dead(2));
  EXPECT_TRUE(participants.excludes(2, 7, 0));
  EXPECT_FALSE(participants.excludes(1, 7, 0));
  EXPECT_EQ(participants.live_in(7, 0), 3u);
}

TEST(ParticipantsTest, set_dead__of_a_silent_rank_that_has_left) {
  Participants participants(4);
  participants.set_silent(2, true);
  participants.set_left(2, {{7, 5}});
  participants.set_dead(2);
  EXPECT_FALSE(participants.is_silent(2));
  EXPECT_FALSE(participants.has_left(2));
  EXPECT_EQ(participants.live_in(7, 0), 3u);
}

TEST(ParticipantsTest, excludes__ranks_that_are_not_of_the_tag) {
  Participants participants(4);
  const std::uint32_t tag = encode(PairTag{.sender = 1, .receiver = 3});
  EXPECT_TRUE(participants.excludes(0, tag, 0));
  EXPECT_TRUE(participants.excludes(2, tag, 0));
  EXPECT_FALSE(participants.excludes(1, tag, 0));
  EXPECT_EQ(participants.live_in(tag, 0), 2u);
  participants.set_left(3, {{tag, 5}});
  EXPECT_EQ(participants.live_in(tag, 4), 2u);
  EXPECT_EQ(participants.live_in(tag, 5), 1u);
}

TEST(ParticipantsTest, set_left__it_takes_part_in_what_it_made) {
  Participants participants(3);
  participants.set_left(1, {{9, 2}, {7, 5}});
  EXPECT_FALSE(participants.excludes(1, 7, 4));
  EXPECT_TRUE(participants.excludes(1, 7, 5));
  EXPECT_FALSE(participants.excludes(1, 9, 1));
  EXPECT_TRUE(participants.excludes(1, 9, 2));
  EXPECT_EQ(participants.made(1, 7), 5u);
  EXPECT_EQ(participants.live_in(7, 4), 3u);
  EXPECT_EQ(participants.live_in(7, 5), 2u);
}

TEST(ParticipantsTest, set_left__a_tag_that_is_not_listed_is_over) {
  Participants participants(2);
  participants.set_left(1, {{7, 5}});
  EXPECT_TRUE(participants.excludes(1, 8, 0));
}

TEST(ParticipantsTest, set_left__numbers_wrap) {
  Participants participants(2);
  participants.set_left(1, {{7, 2}});
  EXPECT_FALSE(participants.excludes(1, 7, 0xffffffff));
}

TEST(ParticipantsTest, set_silent__tells_whether_it_is_news) {
  Participants participants(4);
  EXPECT_TRUE(participants.set_silent(3, true));
  EXPECT_FALSE(participants.set_silent(3, true));
  EXPECT_EQ(participants.silent(), 8u);
  EXPECT_EQ(participants.live_in(7, 0), 3u);
  EXPECT_FALSE(participants.excludes(3, 7, 0));
  EXPECT_TRUE(participants.set_silent(3, false));
  EXPECT_EQ(participants.live_in(7, 0), 4u);
}

TEST(ParticipantsTest, set_silent__not_of_the_dead) {
  Participants participants(4);
  participants.set_dead(3);
  EXPECT_FALSE(participants.set_silent(3, true));
  EXPECT_EQ(participants.silent(), 0u);
}

TEST(ParticipantsTest, live_in__a_silent_rank_that_has_left_is_taken_off_once) {
  Participants participants(4);
  participants.set_left(3, {});
  participants.set_silent(3, true);
  EXPECT_EQ(participants.live_in(7, 0), 3u);
}

}  // namespace
}  // namespace tarpon::participants_test
