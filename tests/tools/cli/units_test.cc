// What users may write for durations, sizes, rates and probabilities, and what they read back.
#include "tools/cli/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace tarpon::units_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Units, parse_duration__units) {
  EXPECT_EQ(parse_duration("500ms"), 500ms);
  EXPECT_EQ(parse_duration("2s"), 2s);
  EXPECT_EQ(parse_duration("30us"), 30us);
  EXPECT_EQ(parse_duration("1m"), 60s);
  EXPECT_EQ(parse_duration("1h"), 3600s);
  EXPECT_EQ(parse_duration("7ns"), 7ns);
  EXPECT_EQ(parse_duration("1.5ms"), 1500us);
  EXPECT_EQ(parse_duration("0.25s"), 250ms);
  EXPECT_EQ(parse_duration("0s"), 0s);
}

TEST(Units, parse_duration__bare_number_names_the_remedy) {
  const auto parsed = parse_duration("5");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, Error::Code::invalid_argument);
  EXPECT_THAT(parsed.error().message, AllOf(HasSubstr("\"5\" has no unit"), HasSubstr("5ms")));
}

TEST(Units, parse_duration__refused) {
  for (const char* text : {"",
                           "ms",
                           "-5ms",
                           "+5ms",
                           " 5ms",
                           "5 ms",
                           "5ms ",
                           "5MS",
                           "5x",
                           "1.ms",
                           ".5ms",
                           "1.5.0s",
                           "1e3ms",
                           "0x5ms",
                           "nan",
                           "infs",
                           "0.5ns",
                           "1.0000000001s",
                           "9999999999999999999s",
                           "999999999999h",
                           "5,0ms"}) {
    const auto parsed = parse_duration(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr("\"" + std::string(text) + "\""));
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
  }
}

TEST(Units, format_duration__texts) {
  EXPECT_EQ(format_duration(0s), "0s");
  EXPECT_EQ(format_duration(1500us), "1.5ms");
  EXPECT_EQ(format_duration(500ms), "500ms");
  EXPECT_EQ(format_duration(90s), "90s");
  EXPECT_EQ(format_duration(1234567ns), "1234.567us");
  EXPECT_EQ(format_duration(12345678901ns), "12345678.901us");
  EXPECT_EQ(format_duration(3ns), "3ns");
  EXPECT_EQ(format_duration(-1500us), "-1.5ms");
}

TEST(Units, parse_bytes__as_nccl_tests) {
  EXPECT_EQ(parse_bytes("128"), 128u);
  EXPECT_EQ(parse_bytes("4K"), 4096u);
  EXPECT_EQ(parse_bytes("4k"), 4096u);
  EXPECT_EQ(parse_bytes("25M"), 25u << 20);
  EXPECT_EQ(parse_bytes("1G"), 1u << 30);
  EXPECT_EQ(parse_bytes("1.5G"), 3u << 29);
  EXPECT_EQ(parse_bytes("0.5K"), 512u);
  EXPECT_EQ(parse_bytes("0.125K"), 128u);
  EXPECT_EQ(parse_bytes("2T"), 2ull << 40);
  EXPECT_EQ(parse_bytes("0"), 0u);
  for (const char* text :
       {"", "K", "-4K", "4KB", "4Ki", "0.1K", "1.5", "9999999999T", "4 K", "four"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
}

TEST(Units, format_bytes__texts) {
  EXPECT_EQ(format_bytes(0), "0");
  EXPECT_EQ(format_bytes(1000), "1000");
  EXPECT_EQ(format_bytes(4096), "4K");
  EXPECT_EQ(format_bytes(25u << 20), "25M");
  EXPECT_EQ(format_bytes(3u << 29), "1536M");
}

TEST(Units, parse_rate__as_tc) {
  EXPECT_EQ(parse_rate("2gbit"), 2'000'000'000u);
  EXPECT_EQ(parse_rate("2Gbit"), 2'000'000'000u);
  EXPECT_EQ(parse_rate("100mbit"), 100'000'000u);
  EXPECT_EQ(parse_rate("2.5gbit"), 2'500'000'000u);
  EXPECT_EQ(parse_rate("64kbit"), 64'000u);
  EXPECT_EQ(parse_rate("9bit"), 9u);
  for (const char* text : {"", "0gbit", "2", "2g", "gbit", "-2gbit", "2gibit"}) {
    EXPECT_FALSE(parse_rate(text)) << text;
  }
  EXPECT_THAT(parse_rate("2gbps").error().message, HasSubstr("bytes per second"));
  EXPECT_THAT(parse_rate("2").error().message, HasSubstr("2gbit"));
  EXPECT_EQ(format_rate(2'000'000'000), "2gbit");
  EXPECT_EQ(format_rate(1'500'000'000), "1500mbit");
  EXPECT_EQ(format_rate(0), "0bit");
}

TEST(Units, parse_probability__percent_only) {
  EXPECT_EQ(parse_probability("1%"), 0.01);
  EXPECT_EQ(parse_probability("0.25%"), 0.0025);
  EXPECT_EQ(parse_probability("100%"), 1.0);
  EXPECT_EQ(parse_probability("0"), 0.0);
  for (const char* text :
       {"", "%", "101%", "0.01", "-1%", "1", "nan", "nan%", "inf", "1%%", "1 %", "ten%"}) {
    EXPECT_FALSE(parse_probability(text)) << text;
  }
}

TEST(Units, round_trip__random_values) {
  constexpr std::uint64_t kSeed = 20;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t value = random() >> (1 + random() % 62);
    const Duration duration(static_cast<Duration::rep>(value));
    EXPECT_EQ(parse_duration(format_duration(duration)), duration) << "seed " << kSeed;
    const std::uint64_t bytes = value;
    EXPECT_EQ(parse_bytes(format_bytes(bytes)), bytes) << "seed " << kSeed;
    EXPECT_EQ(parse_rate(format_rate(bytes | 1)), bytes | 1) << "seed " << kSeed;
  }
}

TEST(Units, round_trip__the_largest_values) {
  constexpr std::uint64_t kLargest = INT64_MAX;
  EXPECT_EQ(parse_duration(format_duration(Duration::max())), Duration::max());
  EXPECT_EQ(parse_bytes(format_bytes(kLargest)), kLargest);
  EXPECT_EQ(parse_rate(format_rate(kLargest)), kLargest);
  EXPECT_FALSE(parse_bytes("9223372036854775808"));
  EXPECT_FALSE(parse_bytes("99999999999999999999"));
}

}  // namespace
}  // namespace tarpon::units_test
