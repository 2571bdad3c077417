// What all rules of inflow have in common: intervals, rests, round trips.
#include "transport/rate/inflow.h"

#include <gtest/gtest.h>

#include <vector>

namespace tarpon::inflow_test {
namespace {

constexpr std::uint64_t kPacket = 1000;

class NotedInflow final : public Inflow {
 public:
  std::vector<InflowCounts> intervals;

 private:
  std::uint64_t steady_window() const override { return 1 << 20; }
  void judge_interval(const InflowCounts& counts) override { intervals.push_back(counts); }
};

void deliver(Inflow& inflow, int packets, bool unasked = false) {
  for (int packet = 0; packet < packets; ++packet) inflow.arrived(kPacket, unasked);
}

TEST(InflowTest, judge__waits_for_enough_packets) {
  NotedInflow inflow;
  deliver(inflow, 1023);
  inflow.judge(Time(1s));
  EXPECT_TRUE(inflow.intervals.empty());
  deliver(inflow, 1);
  inflow.judge(Time(1s) + 5ms);
  ASSERT_EQ(inflow.intervals.size(), 1u);
  EXPECT_EQ(inflow.intervals[0].credited.delivered, 1024u);
  EXPECT_EQ(inflow.intervals[0].delivered_bytes, 1024 * kPacket);
  EXPECT_EQ(inflow.intervals[0].busy, 5ms);
}

TEST(InflowTest, judge__takes_fewer_packets_after_a_long_time) {
  NotedInflow inflow;
  inflow.judge(Time(1s));
  deliver(inflow, 128);
  inflow.judge(Time(1s) + 19ms);
  EXPECT_TRUE(inflow.intervals.empty());
  inflow.judge(Time(1s) + 20ms);
  EXPECT_EQ(inflow.intervals.size(), 1u);
}

TEST(InflowTest, judge__each_packet_counts_in_one_interval) {
  NotedInflow inflow;
  deliver(inflow, 10, true);
  deliver(inflow, 1024);
  inflow.overtaken(3, 2);
  inflow.found(false);
  inflow.round_trip(300us);
  inflow.round_trip(100us);
  inflow.judge(Time(1s));
  deliver(inflow, 1024);
  inflow.found(false);
  inflow.judge(Time(2s));
  ASSERT_EQ(inflow.intervals.size(), 2u);
  const InflowCounts& first = inflow.intervals[0];
  EXPECT_EQ(first.credited.lost, 2);
  EXPECT_EQ(first.unasked.delivered, 10u);
  EXPECT_EQ(first.unasked.lost, 2);
  EXPECT_EQ(first.round_trips, 2u);
  EXPECT_EQ(first.all_round_trips, 400us);
  EXPECT_EQ(first.shortest_round_trip, 100us);
  const InflowCounts& second = inflow.intervals[1];
  EXPECT_EQ(second.credited.lost, -1) << "counted as lost in the first one";
  EXPECT_EQ(second.unasked.seen(), 0u);
  EXPECT_EQ(second.round_trips, 0u);
  EXPECT_EQ(second.busy, 1s);
}

TEST(InflowTest, rest__is_no_time_in_which_data_was_expected) {
  NotedInflow inflow;
  inflow.judge(Time(1s));
  inflow.rest(Time(1s) + 2ms);
  inflow.judge(Time(2s));
  deliver(inflow, 1024);
  inflow.judge(Time(2s) + 3ms);
  ASSERT_EQ(inflow.intervals.size(), 1u);
  EXPECT_EQ(inflow.intervals[0].busy, 5ms);
  EXPECT_TRUE(inflow.intervals[0].rested);
}

TEST(InflowTest, window__grows_again_after_a_rest) {
  NotedInflow inflow;
  inflow.judge(Time(1s));
  deliver(inflow, 1000);
  EXPECT_EQ(inflow.window(), 1u << 20);
  inflow.rest(Time(1s));
  EXPECT_EQ(inflow.window(), (1u << 20) / 4);
  deliver(inflow, 10);
  EXPECT_EQ(inflow.window(), (1u << 20) / 4 + 20 * kPacket);
}

TEST(InflowTest, timeout__follows_the_round_trip_and_its_deviation) {
  NotedInflow inflow;
  for (int i = 0; i < 200; ++i) inflow.round_trip(100us);
  EXPECT_LT(inflow.timeout(), 110us);
  inflow.round_trip(900us);
  EXPECT_GT(inflow.timeout(), 900us);
}

}  // namespace
}  // namespace tarpon::inflow_test
