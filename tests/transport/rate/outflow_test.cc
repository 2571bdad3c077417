// What a sender obeys: the pacer, and the cap and turn-taking over peers.
#include "transport/rate/outflow.h"

#include <gtest/gtest.h>

namespace tarpon::outflow_test {
namespace {

constexpr std::size_t kPacket = 1500;
constexpr std::size_t kMost = 64;

/// Bytes that get through in `span`, looked at whenever the pacer says.
double carried(Pacer& pacer, Duration span) {
  Time now{};
  double bytes = 0;
  while (now < Time(span)) {
    const std::size_t count = pacer.allowed(now, kPacket, kMost);
    pacer.sent(now, count * kPacket);
    bytes += static_cast<double>(count * kPacket);
    now = std::max(now + 1us, pacer.next());
  }
  return bytes;
}

TEST(PacerTest, allowed__keeps_the_rate_and_no_more_than_a_burst_at_once) {
  Pacer pacer(125e6);
  EXPECT_NEAR(carried(pacer, 1s), 125e6, 125e6 * 0.01);
  Pacer rested(125e6);
  EXPECT_EQ(rested.allowed(Time(10s), kPacket, kMost),
            static_cast<std::size_t>(125e6 * Pacer::kLateness) / kPacket);
}

TEST(PacerTest, allowed__without_a_rate_is_unlimited) {
  Pacer pacer;
  pacer.sent(Time{}, 1u << 30);
  EXPECT_EQ(pacer.allowed(Time{}, kPacket, kMost), kMost);
}

TEST(PacerTest, allowed__a_new_rate_takes_effect_for_what_follows) {
  Pacer pacer(125e6);
  pacer.sent(Time{}, 1'250'000);  // ten milliseconds
  pacer.set_rate(12.5e6);
  EXPECT_EQ(pacer.allowed(Time{}, kPacket, kMost), 0u);
  EXPECT_GT(pacer.allowed(Time(12ms), kPacket, kMost), 0u);
}

TEST(OutflowTest, allowed__the_cap_of_the_rank_is_shared_by_all_peers) {
  Outflow outflow({.world_size = 3, .max_bytes_per_second = 125e6});
  const std::size_t first = outflow.allowed(1, Time(1s), kPacket, kMost);
  ASSERT_LT(first, kMost);
  outflow.sent(1, Time(1s), first * kPacket);
  EXPECT_EQ(outflow.allowed(2, Time(1s), kPacket, kMost), 0u);
  EXPECT_GT(outflow.next(2), Time(1s));
  EXPECT_LT(outflow.next(2), Time(1s) + 1ms);
}

TEST(OutflowTest, allowed__the_rule_paces_each_peer_within_the_cap) {
  Outflow outflow({.world_size = 3, .sending = SendRule::timely, .max_bytes_per_second = 125e6});
  for (int i = 0; i < 10; ++i) outflow.round_trip(1, 100us);
  for (int i = 0; i < 1000; ++i) outflow.round_trip(1, 5ms);
  outflow.sent(1, Time(1s), 1 << 20);
  EXPECT_GT(outflow.next(1), outflow.next(2)) << "the pace is slower than the cap";
  const Time later = outflow.next(2);
  EXPECT_EQ(outflow.allowed(1, later, kPacket, kMost), 0u);
  EXPECT_GT(outflow.allowed(2, later, kPacket, kMost), 0u);
}

TEST(OutflowTest, sent_to_all__counts_once_for_the_cap_and_for_the_pace_of_each_peer) {
  Outflow capped({.world_size = 4, .max_bytes_per_second = 125e6});
  Outflow same({.world_size = 4, .max_bytes_per_second = 125e6});
  capped.sent_to_all(0b1110, Time(1s), 2 * kPacket);
  same.sent(1, Time(1s), 2 * kPacket);
  EXPECT_EQ(capped.allowed(3, Time(1s), kPacket, kMost), same.allowed(3, Time(1s), kPacket, kMost));
  Outflow paced({.world_size = 4, .sending = SendRule::timely});
  paced.sent_to_all(0b0110, Time(1s), 1u << 30);
  EXPECT_EQ(paced.allowed(1, Time(1s), kPacket, kMost), 0u);
  EXPECT_EQ(paced.allowed(2, Time(1s), kPacket, kMost), 0u);
  EXPECT_GT(paced.allowed(3, Time(1s), kPacket, kMost), 0u);
}

TEST(OutflowTest, next__is_never_where_nothing_paces) {
  const Outflow outflow({.world_size = 3});
  EXPECT_EQ(outflow.next(1), kNever);
  EXPECT_EQ(outflow.allowed(1, Time(1s), kPacket, kMost), kMost);
}

TEST(OutflowTest, peers_at_once__is_the_fewest_that_a_peer_takes) {
  Outflow outflow({.world_size = 8});
  EXPECT_EQ(outflow.peers_at_once(), 8u);
  outflow.senders_at(1, 5);
  outflow.senders_at(2, 3);
  EXPECT_EQ(outflow.peers_at_once(), 3u);
  outflow.senders_at(2, 7);
  EXPECT_EQ(outflow.peers_at_once(), 5u);
  outflow.senders_at(1, 0);
  EXPECT_EQ(outflow.peers_at_once(), 7u);
}

}  // namespace
}  // namespace tarpon::outflow_test
