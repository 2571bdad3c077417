// Which calls of a benchmark are slow, and what the report says of them.
#include "tools/collective/slow_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tarpon::slow_calls_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SlowCalls, call__is_slow_from_ten_medians_and_100_ms_on) {
  EXPECT_THAT(slow_calls({50, 50, 50, 3e6, 50}), ElementsAre(3));
  EXPECT_THAT(slow_calls({50, 50, 50, 99'000, 50}), IsEmpty()) << "shorter than 100 ms";
  EXPECT_THAT(slow_calls({50'000, 50'000, 50'000, 450'000, 50'000}), IsEmpty());
  EXPECT_THAT(slow_calls({50, 50, 50, 3e6}), IsEmpty()) << "too few calls for a median";
  EXPECT_TRUE(is_slow(3e6, {50, 50, 50, 50, 50}));
}

TEST(SlowCalls, line__names_the_longest_call_of_each_place) {
  Measurement out, in;
  out.time_us = {50, 50, 50, 2e6, 3.0014e6, 50};
  in.time_us = {50, 50, 50, 50, 50, 50};
  in.in_place = true;
  const std::string line = slow_line(out, in, "");
  EXPECT_THAT(line, HasSubstr("# slow: 2 of 6 out-of-place calls took more than 10 x the median"));
  EXPECT_THAT(line, HasSubstr("number 5, 3001 ms"));
  EXPECT_THAT(line, Not(HasSubstr("in-place")));
  EXPECT_THAT(slow_line(std::nullopt, out, "f"), HasSubstr("tarpon flight f"));
  EXPECT_EQ(slow_line(std::nullopt, in, ""), "");
}

}  // namespace
}  // namespace tarpon::slow_calls_test
