// The shape of a testbed, as users write it.
#include "tools/namespaces/testbed_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cli/program/parser.h"

namespace tarpon::testbed_shape_test {
namespace {

using ::testing::HasSubstr;

std::string refusal_into(TestbedOptions& options, const std::vector<std::string>& arguments) {
  cli::OptionTable table;
  add_shape_options(table, "Network", options);
  return cli::parse_options(table, arguments).mistake;
}

TestbedOptions parse(const std::vector<std::string>& arguments) {
  TestbedOptions options;
  EXPECT_EQ(refusal_into(options, arguments), "");
  return options;
}

std::string refusal(const std::vector<std::string>& arguments) {
  TestbedOptions options;
  const std::string mistake = refusal_into(options, arguments);
  return mistake.empty() ? "accepted" : mistake;
}

TEST(ParseTestbedRate, parse_testbed_rate__parts_have_defaults) {
  const TestbedRate plain = parse_testbed_rate("1gbit").value();
  EXPECT_EQ(plain.bits_per_second, 1'000'000'000u);
  EXPECT_EQ(plain.burst_bytes, 128u << 10);
  EXPECT_EQ(plain.limit_bytes, 400u << 10);
  const TestbedRate whole = parse_testbed_rate("2gbit/64K/1M").value();
  EXPECT_EQ(whole.burst_bytes, 64u << 10);
  EXPECT_EQ(whole.limit_bytes, 1u << 20);
  for (const char* text : {"", "2", "2gbit/", "2gbit/x", "2gbit/1K/1K/1K"}) {
    EXPECT_FALSE(parse_testbed_rate(text)) << text;
  }
}

TEST(ParseTestbedLimit, parse_testbed_limit__parts_have_defaults) {
  EXPECT_EQ(parse_testbed_limit("1gbit")->burst_bytes, 128u << 10);
  EXPECT_EQ(parse_testbed_limit("1gbit/2K")->burst_bytes, 2u << 10);
  EXPECT_FALSE(parse_testbed_limit("1gbit/2K/2K"));
  EXPECT_FALSE(parse_testbed_limit("fast"));
}

TEST(ParseBurstLoss, parse_burst_loss__parts_have_defaults) {
  EXPECT_EQ(parse_burst_loss("1%")->burst_share, 0.01);
  EXPECT_EQ(parse_burst_loss("1%")->burst_packets, 8);
  EXPECT_EQ(parse_burst_loss("1%/2.5")->burst_packets, 2.5);
  for (const char* text : {"1", "1%/", "1%/x", "1%/2/3"}) {
    EXPECT_FALSE(parse_burst_loss(text)) << text;
  }
}

TEST(AddShapeOptions, add_shape_options__take_all) {
  const TestbedOptions options =
      parse({"--mtu",        "9000",    "--rate",           "2gbit",
             "--rate-of",    "1=1gbit", "--rate-of",        "2=3gbit/64K",
             "--loss",       "1%",      "--burst-loss",     "2%/4",
             "--police",     "4gbit",   "--police-of",      "0=5gbit",
             "--flow-limit", "6gbit",   "--tcp-congestion", "reno",
             "--uplink",     "7gbit",   "--per-host",       "4/round-robin"});
  EXPECT_EQ(options.places.per_host, 4u);
  EXPECT_TRUE(options.places.round_robin);
  EXPECT_EQ(options.uplink->bits_per_second, 7'000'000'000u);
  EXPECT_EQ(options.mtu, 9000);
  EXPECT_EQ(options.rate->bits_per_second, 2'000'000'000u);
  ASSERT_EQ(options.rate_of.size(), 2u);
  EXPECT_EQ(options.rate_of.at(1).bits_per_second, 1'000'000'000u);
  EXPECT_EQ(options.rate_of.at(2).burst_bytes, 64u << 10);
  EXPECT_EQ(options.loss->probability, 0.01);
  EXPECT_EQ(options.loss->burst_share, 0.02);
  EXPECT_EQ(options.loss->burst_packets, 4);
  EXPECT_EQ(options.police->bits_per_second, 4'000'000'000u);
  EXPECT_EQ(options.police_of.at(0).bits_per_second, 5'000'000'000u);
  EXPECT_EQ(options.flow_limit->bits_per_second, 6'000'000'000u);
  EXPECT_EQ(options.tcp_congestion, "reno");
}

TEST(AddShapeOptions, add_shape_options__refuse) {
  EXPECT_THAT(refusal({"--rate", "5"}), HasSubstr("5gbit"));
  EXPECT_THAT(refusal({"--rate", "1gbit", "--rate", "2gbit"}), HasSubstr("--rate"));
  EXPECT_THAT(refusal({"--rate-of", "1gbit"}), HasSubstr("RANK=RATE, for example 3=1gbit"));
  EXPECT_THAT(refusal({"--rate-of", "x=1gbit"}), HasSubstr("RANK=RATE"));
  EXPECT_THAT(refusal({"--police-of", "1=fast"}), HasSubstr("\"fast\" is not a rate"));
  EXPECT_THAT(refusal({"--burst-loss", "1%/x"}), HasSubstr("SHARE/PACKETS, for example 1%/8"));
  EXPECT_THAT(refusal({"--loss", "1"}), HasSubstr("\"1\" has no unit"));
  EXPECT_THAT(refusal({"--mtu", "10"}), HasSubstr("576"));
}

TEST(IsShaped, is_shaped__by_any_option) {
  EXPECT_FALSE(is_shaped(parse({})));
  for (const std::vector<std::string>& one :
       std::vector<std::vector<std::string>>{{"--mtu", "9000"},
                                             {"--rate", "1gbit"},
                                             {"--rate-of", "0=1gbit"},
                                             {"--loss", "1%"},
                                             {"--burst-loss", "1%"},
                                             {"--police", "1gbit"},
                                             {"--police-of", "0=1gbit"},
                                             {"--flow-limit", "1gbit"},
                                             {"--tcp-congestion", "reno"}}) {
    EXPECT_TRUE(is_shaped(parse(one))) << one[0];
  }
}

}  // namespace
}  // namespace tarpon::testbed_shape_test
