// Traces of stragglers: what is read, what is refused and how, and which sample counts when.
#include "tools/scale/straggler_trace.h"

#include <gtest/gtest.h>

namespace tarpon::scale::straggler_trace_test {
namespace {

const std::string kHead = "operation,rank,from_us,length_us\n";

TEST(StragglerTraceTest, parse__refuses_a_malformed_line_with_its_number) {
  for (const std::string line : {"x,1,1,1", "1,1,1", "1,1,1,1,1", "1,1,1,", "1,,1,1", ",1,1,1",
                                 "-1,1,1,1", "1,-1,1,1", "1,1,1,1.5", "1,65535,1,1", "1, 1,1,1",
                                 "1,**,1,1", "*,1,1,1", "1,1,1,9999999999", "2000000,1,1,1"}) {
    const auto samples = parse_straggler_trace(kHead + "1,1,1,1\n" + line + "\n", "a.csv");
    ASSERT_FALSE(samples) << line;
    EXPECT_EQ(samples.error().message.find("a.csv:3: \"" + line + "\""), 0u)
        << samples.error().message;
  }
  for (const std::string text : {"", "\n\n", "operation,rank\n", "1,1,1,1\n"}) {
    EXPECT_FALSE(parse_straggler_trace(text, "a.csv")) << text;
  }
  EXPECT_TRUE(parse_straggler_trace(kHead, "a.csv")->empty());
}

TEST(StragglerTraceTest, replay__one_operation_by_rank) {
  const auto trace =
      parse_straggler_trace(kHead + "0,*,0,500\r\n\n0,1,20,30\n0,7,1,1\n2,0,5,6", "a.csv");
  ASSERT_TRUE(trace) << trace.error().message;
  std::vector<Episode> episodes(3);
  replay(*trace, 0, episodes);
  EXPECT_EQ(episodes[0].length, 500us);
  EXPECT_TRUE(episodes[0].late_start);
  EXPECT_EQ(episodes[1].from, 20us);
  EXPECT_EQ(episodes[1].length, 30us);
  EXPECT_FALSE(episodes[1].late_start);
  replay(*trace, 1, episodes);
  for (const Episode& episode : episodes) EXPECT_EQ(episode.length, 0us);
  replay(*trace, 2, episodes);
  EXPECT_EQ(episodes[0].end(), 11us);
  EXPECT_EQ(episodes[2].length, 0us);
}

}  // namespace
}  // namespace tarpon::scale::straggler_trace_test
