// Which ranks take part in an operation.
#include "transport/peers/standings.h"

#include <gtest/gtest.h>

namespace tarpon::standings_test {
namespace {

TEST(StandingsTest, set_dead__it_takes_part_in_nothing) {
  Standings standings(4);
  standings.set_dead(2);
  EXPECT_TRUE(standings.is_dead(2));
  EXPECT_TRUE(standings.excludes(2, 7, 0));
  EXPECT_FALSE(standings.excludes(1, 7, 0));
  EXPECT_EQ(standings.live_in(7, 0), 3u);
}

TEST(StandingsTest, set_dead__of_a_silent_rank_that_has_left) {
  Standings standings(4);
  standings.set_silent(2, true);
  standings.set_left(2, {{7, 5}});
  standings.set_dead(2);
  EXPECT_FALSE(standings.is_silent(2));
  EXPECT_FALSE(standings.has_left(2));
  EXPECT_EQ(standings.live_in(7, 0), 3u);
}

TEST(StandingsTest, set_left__it_takes_part_in_what_it_made) {
  Standings standings(3);
  standings.set_left(1, {{9, 2}, {7, 5}});
  EXPECT_FALSE(standings.excludes(1, 7, 4));
  EXPECT_TRUE(standings.excludes(1, 7, 5));
  EXPECT_FALSE(standings.excludes(1, 9, 1));
  EXPECT_TRUE(standings.excludes(1, 9, 2));
  EXPECT_EQ(standings.made(1, 7), 5u);
  EXPECT_EQ(standings.live_in(7, 4), 3u);
  EXPECT_EQ(standings.live_in(7, 5), 2u);
}

TEST(StandingsTest, set_left__a_tag_that_is_not_listed_is_over) {
  Standings standings(2);
  standings.set_left(1, {{7, 5}});
  EXPECT_TRUE(standings.excludes(1, 8, 0));
}

TEST(StandingsTest, set_left__numbers_wrap) {
  Standings standings(2);
  standings.set_left(1, {{7, 2}});
  EXPECT_FALSE(standings.excludes(1, 7, 0xffffffff));
}

TEST(StandingsTest, set_silent__tells_whether_it_is_news) {
  Standings standings(4);
  EXPECT_TRUE(standings.set_silent(3, true));
  EXPECT_FALSE(standings.set_silent(3, true));
  EXPECT_EQ(standings.silent(), 8u);
  EXPECT_EQ(standings.live_in(7, 0), 3u);
  EXPECT_FALSE(standings.excludes(3, 7, 0));
  EXPECT_TRUE(standings.set_silent(3, false));
  EXPECT_EQ(standings.live_in(7, 0), 4u);
}

TEST(StandingsTest, set_silent__not_of_the_dead) {
  Standings standings(4);
  standings.set_dead(3);
  EXPECT_FALSE(standings.set_silent(3, true));
  EXPECT_EQ(standings.silent(), 0u);
}

TEST(StandingsTest, live_in__a_silent_rank_that_has_left_is_taken_off_once) {
  Standings standings(4);
  standings.set_left(3, {});
  standings.set_silent(3, true);
  EXPECT_EQ(standings.live_in(7, 0), 3u);
}

}  // namespace
}  // namespace tarpon::standings_test
