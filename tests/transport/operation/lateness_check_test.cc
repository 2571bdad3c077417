// When a rank asks its peers whether it is late, and how long it waits for the answers.
#include "transport/operation/lateness_check.h"

#include <gtest/gtest.h>

#include "transport/peers/peer_clocks.h"

namespace tarpon::lateness_check_test {
namespace {

constexpr Duration kGrace = 4ms;

/// Rank 0 of three, in a bounded operation of two stages whose last one ends 20 ms after its begin.
class LatenessCheckTest : public testing::Test {
 protected:
  LatenessCheckTest() {
    OperationSpec spec;
    spec.slot_bytes = 100;
    spec.bounded = true;
    spec.deadline = Time(10s);
    spec.stages.resize(2);
    for (const Rank peer : {Rank{1}, Rank{2}}) spec.stages[1].sends.push_back({peer, nullptr, 100});
    prepare(operation_, spec, {.rank = 0, .world_size = 3}, now_);
    operation_.number = 5;
    operation_.grace = kGrace;
    operation_.stages[1].end = kEnd;
    tag_state_.closed_below_of = {0, 0, 0};
    for (const Rank peer : {Rank{1}, Rank{2}}) operation_.peers[peer].note_heard(false);
    check_.set_time(operation_, kEnd - 2ms, now_);
  }

  bool asks() const { return operation_.inquiry.is_on(); }
  void send_all() {
    for (SendMessage& message : operation_.stages[1].sends) message.set_next(message.slots());
  }
  void answer(Rank peer, Time echo) {
    tarpon_header header{};
    header.sender = peer;
    header.echo_us = microseconds(echo);
    check_.note_answer(tag_state_, operation_, header, now_);
  }

  static constexpr Time kBegin = Time(1s);
  static constexpr Time kEnd = kBegin + 20ms;
  Time now_ = kBegin;
  Participants participants_{3};
  Alarm alarm_;
  LatenessCheck check_{participants_, alarm_};
  Operation operation_;
  TagState tag_state_;
};

TEST_F(LatenessCheckTest, look__asks_near_the_end_where_nothing_has_gone_out) {
  check_.look(operation_, kEnd - 3ms);
  EXPECT_FALSE(asks());
  check_.look(operation_, kEnd - 2ms);
  EXPECT_TRUE(asks());
  EXPECT_TRUE(holds_back(operation_, 1));
  EXPECT_EQ(alarm_.at(), kEnd - 2ms);
  for (const Rank peer : {Rank{1}, Rank{2}}) {
    EXPECT_EQ(operation_.peers[peer].ready().at(), kEnd - 2ms);  // the question
    EXPECT_EQ(operation_.peers[peer].ready().repeats(), 1u);
  }
}

TEST_F(LatenessCheckTest, look__does_not_ask_where_something_has_gone_out) {
  operation_.stages[1].sends[0].set_next(1);
  check_.look(operation_, kEnd);
  EXPECT_FALSE(asks());
}

TEST_F(LatenessCheckTest, look__does_not_ask_where_no_peer_needs_anything) {
  for (SendMessage& message : operation_.stages[1].sends) message.finish();
  check_.look(operation_, kEnd);
  EXPECT_FALSE(asks());
}

TEST_F(LatenessCheckTest, note_waiting__asks_once_after_a_long_wait) {
  check_.note_waiting(operation_, 2, now_);
  EXPECT_FALSE(asks());
  check_.note_waiting(operation_, 3, now_);
  EXPECT_TRUE(asks());
  check_.stop(operation_, now_);
  check_.note_waiting(operation_, 4, now_);
  EXPECT_FALSE(asks());
}

TEST_F(LatenessCheckTest, ask__not_the_dead) {
  participants_.set_dead(1);
  check_.ask(operation_, 1, now_);
  EXPECT_FALSE(asks());
}

TEST_F(LatenessCheckTest, ask__anew_after_a_stand_still_that_no_answer_could_end) {
  check_.ask(operation_, 1, now_);
  ASSERT_EQ(operation_.inquiry.until, now_ + kGrace);
  now_ += 100ms;  // nothing ran meanwhile; then peer 2 is heard to have closed the operation
  check_.ask(operation_, 2, now_);
  EXPECT_EQ(operation_.inquiry.until, now_ + kGrace);
  EXPECT_EQ(operation_.inquiry.unanswered, 1u);
  EXPECT_EQ(check_.run(operation_, now_), now_ + kGrace);
  EXPECT_TRUE(asks());
}

TEST_F(LatenessCheckTest, note_answer__a_packet_that_left_after_the_question) {
  now_ = kEnd - 2ms;
  check_.look(operation_, now_);
  answer(1, now_ - 1ms);  // it was on its way
  EXPECT_EQ(operation_.inquiry.unanswered, 2u);
  answer(1, now_);
  answer(2, now_ + 10us);
  EXPECT_EQ(operation_.inquiry.unanswered, 0u);
  EXPECT_FALSE(holds_back(operation_, 1));
  EXPECT_TRUE(asks());  // once more, when the stage has gone out
}

TEST_F(LatenessCheckTest, note_answer__not_of_a_peer_that_has_passed_the_operation) {
  now_ = kEnd - 2ms;
  check_.look(operation_, now_);
  tag_state_.closed_below_of[1] = 6;
  answer(1, now_);
  EXPECT_EQ(operation_.inquiry.unanswered, 2u);
}

TEST_F(LatenessCheckTest, run__asks_once_more_behind_the_last_stage) {
  now_ = kEnd - 2ms;
  check_.look(operation_, now_);
  for (const Rank peer : {Rank{1}, Rank{2}}) check_.answered(operation_, peer, now_);
  send_all();
  EXPECT_EQ(check_.run(operation_, now_), now_ + operation_.gap_delay);
  EXPECT_EQ(operation_.inquiry.unanswered, 0u);
  now_ += operation_.gap_delay;
  EXPECT_EQ(check_.run(operation_, now_), now_ + kGrace);
  EXPECT_EQ(operation_.inquiry.unanswered, 2u);
  for (const Rank peer : {Rank{1}, Rank{2}}) check_.answered(operation_, peer, now_);
  EXPECT_FALSE(asks());
}

TEST_F(LatenessCheckTest, run__waits_for_answers_as_long_as_the_grace) {
  now_ = kEnd - 2ms;
  check_.look(operation_, now_);
  EXPECT_EQ(check_.run(operation_, now_), now_ + kGrace);
  EXPECT_EQ(check_.run(operation_, now_ + kGrace), kNever);
  EXPECT_FALSE(asks());
}

// A hold moves the end by little, so that the end is always near. The stage has to go out all the
// same.
TEST_F(LatenessCheckTest, answered__lets_the_stage_go_out_before_it_asks_again) {
  now_ = kEnd - 2ms;
  check_.look(operation_, now_);
  now_ += kGrace - 1us;  // the answers take nearly as long as this rank waits for them
  operation_.stages[1].end = now_ + 1ms;
  for (const Rank peer : {Rank{1}, Rank{2}}) check_.answered(operation_, peer, now_);
  LatenessCheck::extended(operation_, 1us);
  EXPECT_NE(check_.run(operation_, now_), kNever);
  EXPECT_FALSE(holds_back(operation_, 1));
  check_.look(operation_, now_ + kGrace / 2 - 1us);
  EXPECT_FALSE(holds_back(operation_, 1));
}

TEST_F(LatenessCheckTest, awaits_answers__until_the_deadline_at_most) {
  EXPECT_TRUE(check_.awaits_answers(operation_, kEnd));
  EXPECT_FALSE(check_.awaits_answers(operation_, operation_.deadline));
}

}  // namespace
}  // namespace tarpon::lateness_check_test
