// A message at its receiver: when it asks, what it asks for, and what it gives up.
#include "transport/operation/message/receive_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tarpon::receive_message_test {
namespace {

using testing::ElementsAre;

constexpr Time kNow = Time(1s);
constexpr RequestDelays kDelays{.gap = 1ms, .quiet = 10ms, .longest = 40ms};

/// Of `slots` slots of 100 bytes, all granted.
ReceiveMessage message_of(std::uint32_t slots, bool may_repair = true) {
  ReceiveMessage message;
  message.reset({.peer = 1, .bytes = std::uint64_t{slots} * 100}, 100, may_repair, kNow);
  message.credit().set_granted(slots);
  message.arrivals().set_stripes({16, 1});
  return message;
}

void arrive(ReceiveMessage& message, std::uint32_t slot, Time now, bool answers = false) {
  message.arrivals().insert(slot, 1);
  message.note_arrival(slot, answers, now);
}

std::vector<std::uint32_t> requested(ReceiveMessage& message) {
  std::array<tarpon_range, 8> ranges;
  std::vector<std::uint32_t> slots;
  for (const tarpon_range& range : std::span(ranges).first(message.request(100, ranges).runs)) {
    for (std::uint32_t i = 0; i < range.count; ++i) slots.push_back(range.first + i);
  }
  return slots;
}

TEST(ReceiveMessageTest, due__a_gap_is_asked_for_sooner_than_silence) {
  ReceiveMessage message = message_of(8);
  EXPECT_EQ(message.due(kDelays), kNow + 10ms);
  arrive(message, 0, kNow + 1ms);
  EXPECT_EQ(message.due(kDelays), kNow + 11ms);
  arrive(message, 2, kNow + 2ms);
  EXPECT_EQ(message.due(kDelays), kNow + 3ms);
}

TEST(ReceiveMessageTest, due__never_where_all_that_is_granted_is_here) {
  ReceiveMessage message = message_of(8);
  message.credit().set_granted(2);
  arrive(message, 0, kNow);
  arrive(message, 1, kNow);
  EXPECT_EQ(message.due(kDelays), kNever);
  message.extend_credit(2, kNow + 5ms);
  EXPECT_EQ(message.due(kDelays), kNow + 15ms) << "the silence begins with the credit";
}

TEST(ReceiveMessageTest, request__one_slot_without_proof_of_a_loss_else_those_that_are_lost) {
  ReceiveMessage silent = message_of(8);
  EXPECT_THAT(requested(silent), ElementsAre(0));
  ReceiveMessage gap = message_of(8);
  for (const std::uint32_t slot : {0u, 3u, 5u}) arrive(gap, slot, kNow);
  EXPECT_THAT(requested(gap), ElementsAre(1, 2, 4));
  EXPECT_EQ(gap.credit().requested(), 3u);
  arrive(gap, 1, kNow + 1ms, true);
  EXPECT_EQ(gap.credit().requested(), 2u);
}

TEST(ReceiveMessageTest, note_arrival__an_answer_proves_the_loss_of_all_that_was_granted) {
  ReceiveMessage message = message_of(8);
  EXPECT_FALSE(message.ask(kNow));
  EXPECT_THAT(requested(message), ElementsAre(0));
  arrive(message, 0, kNow + 1ms, true);
  std::array<tarpon_range, 8> ranges;
  EXPECT_EQ(message.request(100, ranges).asks, 0u);
  EXPECT_THAT(requested(message), ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST(ReceiveMessageTest, ask__what_may_not_be_repaired_is_written_off_the_second_time) {
  ReceiveMessage message = message_of(8, false);
  message.credit().set_granted(4);
  EXPECT_FALSE(message.ask(kNow));
  EXPECT_EQ(message.credit().outstanding(message.arrivals().presence()), 4u);
  EXPECT_TRUE(message.ask(kNow + 10ms));
  EXPECT_EQ(message.credit().outstanding(message.arrivals().presence()), 0u);
}

TEST(ReceiveMessageTest, give_up_gap__marks_the_slots_and_counts_them) {
  ReceiveMessage message = message_of(4, false);
  arrive(message, 0, kNow);
  arrive(message, 3, kNow);
  std::array<tarpon_range, 8> ranges;
  EXPECT_EQ(message.give_up_gap(kDelays, kNow + 999us, ranges), 0u) << "too early";
  ASSERT_EQ(message.give_up_gap(kDelays, kNow + 1ms, ranges), 1u);
  EXPECT_EQ(ranges[0].first, 1u);
  EXPECT_EQ(ranges[0].count, 2u);
  EXPECT_TRUE(message.delivered());
  EXPECT_EQ(message.received(), 2u);
  EXPECT_EQ(message.received_bytes(), 200u);
  EXPECT_EQ(message.give_up_gap(kDelays, kNow + 2ms, ranges), 0u);
}

TEST(ReceiveMessageTest, allow_repair__never_takes_away) {
  ReceiveMessage message = message_of(8, false);
  EXPECT_FALSE(message.may_repair());
  message.allow_repair(4);
  message.allow_repair(2);
  for (const std::uint32_t slot : {0u, 7u}) arrive(message, slot, kNow);
  EXPECT_THAT(requested(message), ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace tarpon::receive_message_test
