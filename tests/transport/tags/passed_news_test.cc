// The HEARTBEATs that tell and ask how far ranks are with each tag.
#include "transport/tags/passed_news.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tarpon::passed_news_test {
namespace {

using testing::ElementsAre;

/// Rank 0 of three. A HEARTBEAT carries two tags.
class PassedNewsTest : public testing::Test {
 protected:
  /// Rank 0 has made and closed the operations of `tag` below `number`.
  TagState& pass(std::uint32_t tag, std::uint32_t number, Time now) {
    TagState& tag_state = tags_.activate(tag);
    tag_state.next_number = number;
    news_.rose(tag_state, now);
    return tag_state;
  }

  std::vector<HeartbeatDue> run(Time now) {
    news_.run(now, control_);
    std::vector<HeartbeatDue> due;
    while (auto one = control_.pop_heartbeat()) due.push_back(std::move(*one));
    return due;
  }

  TagHistory tags_{{.world_size = 3, .retain_bytes = 0, .remembered_tags = 16}};
  Participants participants_{3};
  ControlQueue control_{3, participants_};
  PassedNews news_{0, 3, 2, tags_, participants_};
};

TEST_F(PassedNewsTest, run__tells_all_peers_after_a_while) {
  pass(7, 5, Time(1s));
  EXPECT_EQ(news_.next(), Time(1s) + PassedNews::kTellAfter);
  EXPECT_TRUE(run(Time(1s)).empty());
  const std::vector<HeartbeatDue> told = run(news_.next());
  ASSERT_EQ(told.size(), 2u);
  for (const HeartbeatDue& one : told) {
    EXPECT_EQ(one.kind, static_cast<std::uint32_t>(TARPON_HEARTBEAT_NEWS));
    EXPECT_THAT(one.numbers, ElementsAre(NextNumber{7, 5}));
  }
  EXPECT_EQ(news_.next(), Time(1s) + PassedNews::kAskAfter);
}

TEST_F(PassedNewsTest, run__tells_at_once_where_a_packet_is_full) {
  pass(7, 5, Time(1s));
  pass(8, 2, Time(1s));
  EXPECT_EQ(news_.next(), Time(1s));
  EXPECT_EQ(run(Time(1s)).size(), 2u);
}

TEST_F(PassedNewsTest, run__packets_of_an_open_operation_say_it) {
  pass(7, 5, Time(1s)).open.push_back({.number = 4});
  EXPECT_TRUE(run(Time(1s) + PassedNews::kTellAfter).empty());
}

TEST_F(PassedNewsTest, run__asks_peers_that_have_not_passed_until_they_have) {
  TagState& tag_state = pass(7, 5, Time(1s));
  tag_state.closed_below_of = {0, 5, 3};
  run(Time(1s) + PassedNews::kTellAfter);
  const std::vector<HeartbeatDue> asked = run(Time(1s) + PassedNews::kAskAfter);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].peer, 2);
  EXPECT_EQ(asked[0].kind, static_cast<std::uint32_t>(TARPON_HEARTBEAT_QUESTION));
  EXPECT_THAT(asked[0].numbers, ElementsAre(NextNumber{7, 5}));
  EXPECT_EQ(run(news_.next()).size(), 1u);  // the answer may be lost
  tag_state.closed_below_of[2] = 5;
  EXPECT_TRUE(run(news_.next()).empty());
  EXPECT_EQ(news_.next(), kNever);
}

TEST_F(PassedNewsTest, run__says_nothing_to_the_dead) {
  participants_.set_dead(2);
  pass(7, 5, Time(1s)).closed_below_of = {0, 5, 0};
  EXPECT_EQ(run(Time(1s) + PassedNews::kTellAfter).size(), 1u);
  EXPECT_TRUE(run(Time(1s) + PassedNews::kAskAfter).empty());
}

TEST_F(PassedNewsTest, run__a_round_of_questions_goes_on_behind_the_last_one) {
  for (std::uint32_t tag = 0; tag < 12; ++tag) pass(tag, 5, Time(1s)).closed_below_of = {0, 5, 0};
  run(Time(1s));
  std::vector<std::uint32_t> tags;
  Time now = Time(1s);
  for (int round = 0; round < 2; ++round) {
    now += PassedNews::kAskAfter;
    for (const HeartbeatDue& one : run(now)) {
      for (const NextNumber& number : one.numbers) tags.push_back(number.tag);
    }
  }
  EXPECT_THAT(tags, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3));
}

TEST_F(PassedNewsTest, passed_by__one_that_has_left_has_passed_what_it_did_not_make) {
  TagState& tag_state = tags_.activate(7);
  tag_state.next_number = 5;
  tag_state.closed_below_of = {0, 2, 2};
  participants_.set_left(1, {{7, 2}});
  participants_.set_left(2, {{7, 3}});
  EXPECT_EQ(passed_by(tag_state, 1, participants_), 5u);
  EXPECT_EQ(passed_by(tag_state, 2, participants_), 2u);
}

}  // namespace
}  // namespace tarpon::passed_news_test
