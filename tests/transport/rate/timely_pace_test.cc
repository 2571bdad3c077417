// TIMELY's rate, and the pace that it gives to each peer.
#include "transport/rate/timely_pace.h"

#include <gtest/gtest.h>

namespace tarpon::timely_pace_test {
namespace {

constexpr std::size_t kPacket = 1500;
constexpr std::size_t kMost = 64;

TEST(TimelyTest, round_trip__falls_in_a_queue_and_rises_without) {
  Timely timely(1.25e9);
  for (int i = 0; i < 20; ++i) timely.round_trip(100us);
  EXPECT_EQ(timely.bytes_per_second(), 1.25e9);  // nothing queues: the line rate
  for (int i = 0; i < 400; ++i) timely.round_trip(2ms);
  const double slow = timely.bytes_per_second();
  EXPECT_LT(slow, 0.1 * 1.25e9);
  EXPECT_GE(slow, 12.5e6);
  for (int i = 0; i < 4000; ++i) timely.round_trip(100us);
  EXPECT_GT(timely.bytes_per_second(), 5 * slow);
}

TEST(TimelyTest, round_trip__a_long_base_is_no_queue) {
  Timely timely(1.25e9);
  for (int i = 0; i < 400; ++i) timely.round_trip(5ms);
  EXPECT_EQ(timely.bytes_per_second(), 1.25e9);
}

TEST(TimelyPaceTest, allowed__a_queue_towards_one_peer_slows_that_one_alone) {
  TimelyPace pace(3, 0);
  for (int i = 0; i < 10; ++i) pace.round_trip(1, 100us);
  for (int i = 0; i < 1000; ++i) pace.round_trip(1, 5ms);
  pace.sent(1, Time(1s), 1 << 20);
  pace.sent(2, Time(1s), 1 << 20);
  const Time soon = Time(1s) + 200us;
  EXPECT_EQ(pace.allowed(1, soon, kPacket, kMost), 0u);
  EXPECT_GT(pace.allowed(2, soon, kPacket, kMost), 0u);
  EXPECT_GT(pace.next(1), soon);
}

TEST(TimelyPaceTest, allowed__begins_at_the_cap) {
  TimelyPace pace(2, 125e6);
  pace.sent(1, Time(1s), 1'250'000);  // ten milliseconds
  EXPECT_EQ(pace.allowed(1, Time(1s) + 9ms, kPacket, kMost), 0u);
  EXPECT_GT(pace.allowed(1, Time(1s) + 10ms, kPacket, kMost), 0u);
}

}  // namespace
}  // namespace tarpon::timely_pace_test
