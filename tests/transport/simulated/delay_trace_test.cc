// Traces of delays: what is read, what is refused and how, and which sample counts when.
#include "transport/simulated/delay_trace.h"

#include <gtest/gtest.h>

namespace tarpon::delay_trace_test {
namespace {

TEST(DelayTraceTest, parse__reads_samples_of_ranks_and_of_all) {
  const auto samples =
      parse_delay_trace("time_us,rank,delay_us\n0,3,200\r\n\n1500,*,7\n20,0,0", "trace.csv");
  ASSERT_TRUE(samples) << samples.error().message;
  EXPECT_EQ(*samples,
            (std::vector<DelaySample>{
                {Time(0us), 3, 200us}, {Time(1500us), kUnknownRank, 7us}, {Time(20us), 0, 0us}}));
  EXPECT_TRUE(parse_delay_trace("time_us,rank,delay_us\n", "trace.csv")->empty());
}

TEST(DelayTraceTest, parse__refuses_a_malformed_line_with_its_number) {
  const std::string head = "time_us,rank,delay_us\n1,1,1\n";
  for (const std::string line :
       {"x,1,1", "1,1", "1,1,1,1", "1,1,", "1,,1", ",1,1", "-1,1,1", "1,-1,1", "1,1,-1", "1,1,1.5",
        "1,65535,1", "1,1,99999999999999", "1, 1,1", "**,1,1", "1,*1,1", "1,1,1 "}) {
    const auto samples = parse_delay_trace(head + line + "\n1,1,1\n", "trace.csv");
    ASSERT_FALSE(samples) << line;
    EXPECT_EQ(samples.error().code, Error::Code::invalid_argument);
    EXPECT_EQ(samples.error().message.find("trace.csv:3: \"" + line + "\""), 0u)
        << samples.error().message;
  }
}

TEST(DelayTraceTest, parse__refuses_a_file_without_its_first_line) {
  EXPECT_EQ(parse_delay_trace("1,1,1\n", "a.csv").error().message.find("a.csv:1: "), 0u);
  EXPECT_EQ(parse_delay_trace("", "a.csv").error().message.find("a.csv: empty"), 0u);
}

TEST(DelayTraceTest, at__the_last_sample_of_the_rank_and_of_all) {
  DelayTrace trace({{Time(30us), 1, 3us}, {Time(10us), 1, 5us}, {Time(20us), kUnknownRank, 100us}},
                   2);
  EXPECT_EQ(trace.at(Time(9us), 1), 0us);
  EXPECT_EQ(trace.at(Time(10us), 1), 5us);
  EXPECT_EQ(trace.at(Time(10us), 0), 0us);
  EXPECT_EQ(trace.at(Time(25us), 1), 105us);
  EXPECT_EQ(trace.at(Time(25us), 0), 100us);
  EXPECT_EQ(trace.at(Time(30us), 1), 103us);
}

}  // namespace
}  // namespace tarpon::delay_trace_test
