// Ranges of ports, and sockets that share one.
#include "collectives/port_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

namespace tarpon::port_range_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(PortRangeTest, parse_port_range__ranges_and_single_ports) {
  EXPECT_EQ(parse_port_range("29600-29699"), (PortRange{29600, 29699}));
  EXPECT_EQ(parse_port_range("29600"), (PortRange{29600, 29600}));
  EXPECT_EQ(parse_port_range("1-65535"), (PortRange{1, 65535}));
}

TEST(PortRangeTest, parse_port_range__refuses_the_rest) {
  for (const char* text :
       {"", "-", "0", "0-5", "5-", "-5", "7-6", "1-65536", "1:2", "a-b", " 1-2"}) {
    const auto range = parse_port_range(text);
    ASSERT_FALSE(range) << text;
    EXPECT_EQ(range.error().code, Error::Code::invalid_argument);
    EXPECT_THAT(range.error().message, AllOf(HasSubstr(std::string("\"") + text + "\""),
                                             HasSubstr("write for example 29600-29699")));
  }
}

/// Ports that others have.
struct Taken {
  std::set<std::uint16_t> ports;

  Result<std::uint16_t> open(std::uint16_t port) const {
    if (ports.contains(port)) return fail_system(EADDRINUSE, "bind");
    return port;
  }
};

TEST(PortRangeTest, open_in__takes_the_next_free_port) {
  const Taken taken{{100, 101, 103}};
  const auto open = [&](std::uint16_t port) { return taken.open(port); };
  EXPECT_EQ(open_in({100, 104}, "TCP port", open), 102);
  EXPECT_EQ(open_in({}, "TCP port", open), 0) << "the kernel chooses";
  EXPECT_EQ(open_in({65535, 65535}, "TCP port", open), 65535);
}

TEST(PortRangeTest, open_in__names_an_exhausted_range_and_what_a_rank_needs) {
  const Taken taken{{100, 101}};
  const auto opened =
      open_in({100, 101}, "UDP port", [&](std::uint16_t port) { return taken.open(port); });
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Error::Code::unavailable);
  EXPECT_THAT(opened.error().message,
              AllOf(HasSubstr("no UDP port of 100-101 is free"), HasSubstr("needs 4 UDP ports"),
                    HasSubstr("--ports, TARPON_PORTS")));
}

TEST(PortRangeTest, open_in__another_error_ends_the_search) {
  int asked = 0;
  const auto opened = open_in({1, 9}, "TCP port", [&](std::uint16_t) -> Result<int> {
    ++asked;
    return fail_system(EACCES, "bind");
  });
  EXPECT_FALSE(opened);
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace tarpon::port_range_test
