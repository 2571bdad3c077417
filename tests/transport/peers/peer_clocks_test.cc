// What the clocks on packets tell.
#include "transport/peers/peer_clocks.h"

#include <gtest/gtest.h>

namespace tarpon::peer_clocks_test {
namespace {

constexpr Time at(std::int64_t microseconds) {
  return Time(std::chrono::microseconds(microseconds));
}

tarpon_header packet(std::uint32_t number, std::uint32_t sent_us, std::uint32_t echo_us) {
  tarpon_header header{};
  header.sender = 1;
  header.packet_number = number;
  header.sent_us = sent_us;
  header.echo_us = echo_us;
  return header;
}

TEST(PeerClocksTest, receive__the_echo_tells_the_round_trip) {
  PeerClocks clocks(2);
  EXPECT_EQ(clocks.receive(packet(0, 5, 1000), at(1250)), Duration(250us));
  EXPECT_EQ(clocks.age(), Duration(250us));
  EXPECT_EQ(clocks.heard(1), at(1250));
  clocks.release_packet();
  EXPECT_EQ(clocks.age(), Duration::zero());
}

TEST(PeerClocksTest, receive__without_an_echo_the_age_is_unknown) {
  PeerClocks clocks(2);
  EXPECT_EQ(clocks.receive(packet(0, 5, 0), at(1250)), std::nullopt);
  EXPECT_EQ(clocks.age(), kUnknownAge);
}

TEST(PeerClocksTest, receive__an_echo_from_the_future_tells_no_round_trip) {
  PeerClocks clocks(2);
  EXPECT_EQ(clocks.receive(packet(0, 5, 1300), at(1250)), std::nullopt);
  EXPECT_EQ(clocks.age(), Duration::zero());
}

TEST(PeerClocksTest, receive__the_wire_clock_wraps) {
  PeerClocks clocks(2);
  const Time now = at((std::int64_t{1} << 32) + 50);
  EXPECT_EQ(clocks.receive(packet(0, 5, 0xffffffff), now), Duration(51us));
}

TEST(PeerClocksTest, receive__overtaken_by_a_later_packet) {
  PeerClocks clocks(2);
  clocks.receive(packet(0xffffffff, 5, 0), at(1));
  EXPECT_FALSE(clocks.overtaken());
  clocks.receive(packet(1, 6, 0), at(2));  // numbers wrap
  EXPECT_FALSE(clocks.overtaken());
  clocks.receive(packet(0, 6, 0), at(3));
  EXPECT_TRUE(clocks.overtaken());
  clocks.receive(packet(2, 7, 0), at(4));
  EXPECT_FALSE(clocks.overtaken());
}

TEST(PeerClocksTest, echo__moves_on_with_the_time_since) {
  PeerClocks clocks(2);
  EXPECT_EQ(clocks.echo(1, at(900)), 0u);
  clocks.receive(packet(0, 7000, 0), at(1000));
  EXPECT_EQ(clocks.echo(1, at(1400)), 7400u);
}

/// Its error would grow with the drift of the clocks.
TEST(PeerClocksTest, echo__of_a_packet_that_came_long_ago_is_none) {
  PeerClocks clocks(2);
  clocks.receive(packet(0, 7000, 0), at(1000));
  EXPECT_EQ(clocks.echo(1, at(2'001'000)), 2'007'000u);
  EXPECT_EQ(clocks.echo(1, at(2'001'001)), 0u);
  clocks.receive(packet(1, 3'000'000, 0), at(3'001'000));
  EXPECT_EQ(clocks.echo(1, at(3'002'000)), 3'001'000u);
}

TEST(PeerClocksTest, echoes__at_or_after_the_time_and_not_from_the_future) {
  const Time now = at(2'000'000);
  EXPECT_FALSE(PeerClocks::echoes(packet(0, 5, 0), 0, now));
  EXPECT_FALSE(PeerClocks::echoes(packet(0, 5, 999), 1000, now));
  EXPECT_TRUE(PeerClocks::echoes(packet(0, 5, 1000), 1000, now));
  EXPECT_TRUE(PeerClocks::echoes(packet(0, 5, 2'100'000), 1000, now));  // clocks drift
  EXPECT_FALSE(PeerClocks::echoes(packet(0, 5, 2'100'001), 1000, now));
}

TEST(PeerClocksTest, answers__only_where_the_peer_was_asked) {
  PeerClocks clocks(2);
  EXPECT_FALSE(clocks.answers(packet(0, 5, 1000), at(2000)));
  clocks.ask(1, 900);
  EXPECT_TRUE(clocks.answers(packet(0, 5, 1000), at(2000)));
  EXPECT_FALSE(clocks.answers(packet(0, 5, 899), at(2000)));
}

}  // namespace
}  // namespace tarpon::peer_clocks_test
