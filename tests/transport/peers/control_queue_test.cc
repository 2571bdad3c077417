// Packets that are due, apart from DATA of open operations.
#include "transport/peers/control_queue.h"

#include <gtest/gtest.h>

namespace tarpon::control_queue_test {
namespace {

TEST(ControlQueueTest, pop__in_the_order_of_push) {
  const Participants participants(2);
  ControlQueue queue(2, participants);
  EXPECT_FALSE(queue.pop().has_value());
  EXPECT_TRUE(queue.push(ControlDue{.type = TARPON_READY, .peer = 1}));
  EXPECT_TRUE(queue.push(ControlDue{.type = TARPON_CLOSED, .peer = 1}));
  EXPECT_GT(queue.size(), 0u);
  EXPECT_EQ(queue.pop()->type, TARPON_READY);
  EXPECT_EQ(queue.pop()->type, TARPON_CLOSED);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(ControlQueueTest, push__refuses_control_beyond_the_limit) {
  const Participants participants(2);
  ControlQueue queue(2, participants);
  for (std::size_t i = 0; i < ControlQueue::kMaxControl; ++i) {
    ASSERT_TRUE(queue.push(ControlDue{.peer = 1}));
  }
  EXPECT_FALSE(queue.push(ControlDue{.peer = 1}));
  queue.pop();
  EXPECT_TRUE(queue.push(ControlDue{.peer = 1}));
}

TEST(ControlQueueTest, push__one_peer_takes_no_room_of_another) {
  Participants participants(3);
  ControlQueue queue(3, participants);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    queue.push(ControlDue{.peer = 1});
    queue.push(HeartbeatDue{.peer = 1, .numbers = {}});
    queue.push(AgreementPacket{.peer = 1, .payload = {}});
    queue.push(RetainedDue{.peer = 1, .tag = i, .count = 1});
  }
  EXPECT_TRUE(queue.push(ControlDue{.peer = 2}));
  queue.push(AgreementPacket{.peer = 2, .payload = {}});
  queue.push(HeartbeatDue{.peer = 2, .numbers = {}});
  queue.push(RetainedDue{.peer = 2, .count = 1});
  std::size_t control = 0, heartbeats = 0, agreements = 0, retained = 0;
  while (queue.pop()->peer == 1) ++control;
  while (queue.pop_heartbeat()->peer == 1) ++heartbeats;
  while (queue.pop_agreement()->peer == 1) ++agreements;
  for (; queue.front_retained()->peer == 1; queue.pop_retained()) ++retained;
  EXPECT_EQ(control, ControlQueue::kMaxControl);
  EXPECT_EQ(heartbeats, ControlQueue::kMaxHeartbeats);
  EXPECT_EQ(agreements, ControlQueue::kMaxAgreements);
  EXPECT_EQ(retained, ControlQueue::kMaxRetained);
  // A peer that has been dropped and is not dead has all its room.
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < ControlQueue::kMaxControl; ++i) {
      EXPECT_TRUE(queue.push(ControlDue{.peer = 1}));
    }
    EXPECT_FALSE(queue.push(ControlDue{.peer = 1}));
    queue.drop(1);
  }
}

/// A peer may renew a request as often as it likes.
TEST(ControlQueueTest, push__a_renewed_request_finds_room) {
  const Participants participants(2);
  ControlQueue queue(2, participants);
  const auto limit = static_cast<std::uint32_t>(ControlQueue::kMaxRetained);
  for (std::uint32_t round = 1; round <= 3; ++round) {
    for (std::uint32_t number = 0; number < limit; ++number) {
      queue.push(RetainedDue{.peer = 1, .number = number, .count = round});
    }
  }
  for (std::uint32_t number = 0; number < limit; ++number) {
    ASSERT_NE(queue.front_retained(), nullptr);
    EXPECT_EQ(queue.front_retained()->number, number);
    EXPECT_EQ(queue.front_retained()->count, 3u);
    queue.pop_retained();
  }
  EXPECT_EQ(queue.size(), 0u);
}

TEST(ControlQueueTest, push__drops_heartbeats_beyond_the_limit) {
  const Participants participants(2);
  ControlQueue queue(2, participants);
  for (std::size_t i = 0; i < ControlQueue::kMaxHeartbeats + 3; ++i) {
    queue.push(HeartbeatDue{.peer = 1, .numbers = {{static_cast<std::uint32_t>(i), 0}}});
  }
  std::size_t count = 0;
  while (const auto due = queue.pop_heartbeat()) EXPECT_EQ(due->numbers.front().tag, count++);
  EXPECT_EQ(count, ControlQueue::kMaxHeartbeats);
}

TEST(ControlQueueTest, push__the_newest_request_of_a_peer_counts) {
  const Participants participants(3);
  ControlQueue queue(3, participants);
  queue.push(RetainedDue{.peer = 1, .tag = 7, .number = 4, .count = 3});
  queue.push(RetainedDue{.peer = 2, .tag = 7, .number = 4, .count = 1});
  queue.push(RetainedDue{.peer = 1, .tag = 7, .number = 4, .count = 2});
  ASSERT_NE(queue.front_retained(), nullptr);
  EXPECT_EQ(queue.front_retained()->peer, 2);
  queue.pop_retained();
  ASSERT_NE(queue.front_retained(), nullptr);
  EXPECT_EQ(queue.front_retained()->count, 2u);
  queue.push(RetainedDue{.peer = 1, .tag = 7, .number = 4, .count = 0});
  EXPECT_EQ(queue.front_retained(), nullptr);
}

TEST(ControlQueueTest, push__nothing_to_the_dead) {
  Participants participants(3);
  ControlQueue queue(3, participants);
  participants.set_dead(1);
  EXPECT_TRUE(queue.push(ControlDue{.peer = 1}));
  queue.push(HeartbeatDue{.peer = 1, .numbers = {}});
  queue.push(AgreementPacket{.peer = 1, .payload = {}});
  EXPECT_EQ(queue.size(), 0u);
}

TEST(ControlQueueTest, drop__what_is_due_to_one_peer) {
  const Participants participants(3);
  ControlQueue queue(3, participants);
  for (const Rank peer : {Rank{1}, Rank{2}}) {
    queue.push(ControlDue{.peer = peer});
    queue.push(HeartbeatDue{.peer = peer, .numbers = {}});
    queue.push(AgreementPacket{.peer = peer, .payload = {}});
    queue.push(RetainedDue{.peer = peer, .count = 1});
  }
  queue.drop(1);
  EXPECT_EQ(queue.pop()->peer, 2);
  EXPECT_FALSE(queue.pop().has_value());
  EXPECT_EQ(queue.pop_heartbeat()->peer, 2);
  EXPECT_EQ(queue.pop_agreement()->peer, 2);
  EXPECT_EQ(queue.front_retained()->peer, 2);
  queue.drop(2);
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace tarpon::control_queue_test
