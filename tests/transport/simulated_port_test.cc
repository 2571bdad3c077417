// The network in memory: delays, order, limits, and the same seed giving the same trace.
#include "transport/ports/simulated_port.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tarpon {
namespace {

void send(Port& port, Rank peer, std::uint32_t number, std::uint32_t length = 8) {
  const std::span<TxPacket> frames = port.transmit_frames(1);
  ASSERT_EQ(frames.size(), 1u);
  std::memset(frames[0].header, 0, TARPON_HEADER_BYTES);
  std::memcpy(frames[0].header, &number, sizeof number);
  std::memset(frames[0].room, static_cast<int>(number & 0xff), length);
  frames[0].peer = peer;
  frames[0].length = length;
  frames[0].payload = frames[0].room;
  port.transmit(frames);
}

std::uint32_t number_of(const RxPacket& packet) {
  std::uint32_t number = 0;
  std::memcpy(&number, packet.data, sizeof number);
  return number;
}

std::vector<std::uint32_t> numbers(std::span<const RxPacket> packets) {
  std::vector<std::uint32_t> result;
  for (const RxPacket& packet : packets) result.push_back(number_of(packet));
  return result;
}

TEST(SimulatedPortTest, receive__after_the_delay_and_not_before) {
  SimulatedNetwork network({.delay = 20us, .jitter = 0us});
  const auto a = network.make_port(0);
  const auto b = network.make_port(1);
  EXPECT_EQ(network.next_arrival(), kNever);
  send(*a, 1, 7, 100);
  EXPECT_EQ(network.next_arrival(), Time(20us));
  EXPECT_TRUE(b->receive(Time(20us - 1ns)).empty());
  const auto packets = b->receive(Time(20us));
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(number_of(packets[0]), 7u);
  EXPECT_EQ(packets[0].length, TARPON_HEADER_BYTES + 100);
  EXPECT_EQ(packets[0].source, 0);
  EXPECT_EQ(packets[0].data[TARPON_HEADER_BYTES + 99], std::byte{7});
  EXPECT_EQ(network.next_arrival(), kNever);
  EXPECT_TRUE(b->receive(Time(1s)).empty());
  EXPECT_TRUE(a->receive(Time(1s)).empty());
}

TEST(SimulatedPortTest, receive__without_jitter_in_the_order_of_sending) {
  SimulatedNetwork network({.ranks = 3, .jitter = 0us});
  const auto a = network.make_port(0);
  const auto b = network.make_port(1);
  const auto c = network.make_port(2);
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < 200; ++i) {
    send(i % 3 == 0 ? *a : *b, 2, i);
    expected.push_back(i);
  }
  EXPECT_EQ(numbers(c->receive(Time(1ms))), expected);
}

TEST(SimulatedPortTest, receive__jitter_reorders_within_its_bounds_and_loses_nothing) {
  SimulatedNetwork network({.delay = 20us, .jitter = 10us});
  const auto a = network.make_port(0);
  const auto b = network.make_port(1);
  for (std::uint32_t i = 0; i < 500; ++i) send(*a, 1, i);
  EXPECT_TRUE(b->receive(Time(20us - 1ns)).empty());
  std::vector<std::uint32_t> got = numbers(b->receive(Time(30us)));
  ASSERT_EQ(got.size(), 500u);
  EXPECT_FALSE(std::is_sorted(got.begin(), got.end()));
  std::sort(got.begin(), got.end());
  for (std::uint32_t i = 0; i < 500; ++i) EXPECT_EQ(got[i], i);
}

TEST(SimulatedPortTest, transmit__beyond_the_queue_counts_as_overrun_of_the_receiver) {
  SimulatedNetwork network({.queue_packets = 3});
  const auto a = network.make_port(0);
  const auto b = network.make_port(1);
  for (std::uint32_t i = 0; i < 5; ++i) send(*a, 1, i);
  EXPECT_EQ(b->receive(Time(1ms)).size(), 3u);
  EXPECT_EQ(b->statistics().rx_overruns, 2u);
  EXPECT_EQ(b->statistics().rx_packets, 3u);
  EXPECT_EQ(a->statistics().rx_overruns, 0u);
  EXPECT_EQ(a->statistics().tx_packets, 5u);
  EXPECT_EQ(a->statistics().tx_bytes, 5u * (TARPON_HEADER_BYTES + 8));
}

TEST(SimulatedPortTest, transmit_frames__no_more_than_the_port_has) {
  SimulatedNetwork network({.frames = 3});
  const auto a = network.make_port(0);
  EXPECT_EQ(a->transmit_frames(2).size(), 2u);
  EXPECT_EQ(a->transmit_frames(100).size(), 3u);
  EXPECT_EQ(a->transmit_frames(0).size(), 0u);
  EXPECT_EQ(a->unsent(), 0u);
}

TEST(SimulatedPortTest, advance_to__never_goes_back) {
  SimulatedNetwork network({});
  network.advance_to(Time(5ms));
  network.advance_to(Time(1ms));
  EXPECT_EQ(network.now(), Time(5ms));
}

struct Trace {
  std::uint64_t hash = 0;
  std::vector<std::uint32_t> arrived;
  bool operator==(const Trace&) const = default;
};

Trace trace(std::uint64_t seed, std::uint32_t packets, std::uint32_t first) {
  SimulatedNetwork network({.seed = seed});
  const auto a = network.make_port(0);
  const auto b = network.make_port(1);
  for (std::uint32_t i = 0; i < packets; ++i) send(*a, 1, first + i);
  return {network.trace_hash(), numbers(b->receive(Time(1ms)))};
}

TEST(SimulatedPortTest, trace_hash__follows_from_the_packets_and_arrivals_from_the_seed) {
  EXPECT_EQ(trace(1, 50, 0), trace(1, 50, 0));
  EXPECT_NE(trace(1, 50, 0).hash, trace(1, 49, 0).hash);
  EXPECT_NE(trace(1, 50, 0).hash, trace(1, 50, 1).hash);
  EXPECT_NE(trace(1, 50, 0).arrived, trace(2, 50, 0).arrived);
}

}  // namespace
}  // namespace tarpon
