// The network in memory: delays, order, limits, and the same seed giving the same trace.
#include "transport/simulated/simulated_port.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace tarpon::simulated_port_test {
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

TEST(SimulatedPortTest, transmit__to_all_ranks_reaches_each_other_one) {
  for (const bool links : {false, true}) {
    SimulatedNetworkOptions options{.ranks = 3, .delay = 20us, .jitter = 0us, .multicasts = true};
    if (links) options.links = FabricOptions{};
    SimulatedNetwork network(options);
    std::vector<std::unique_ptr<Port>> ports;
    for (Rank rank = 0; rank < 3; ++rank) ports.push_back(network.make_port(rank));
    EXPECT_TRUE(ports[0]->capabilities().multicasts);
    send(*ports[1], kAllRanks, 7, 100);
    EXPECT_EQ(ports[1]->statistics().tx_packets, 1u);
    network.advance_to(Time(20us));
    for (const Rank rank : {Rank{0}, Rank{2}}) {
      const auto packets = ports[rank]->receive(Time(20us));
      ASSERT_EQ(packets.size(), 1u) << rank;
      EXPECT_EQ(number_of(packets[0]), 7u);
      EXPECT_EQ(packets[0].source, 1);
    }
    EXPECT_TRUE(ports[1]->receive(Time(20us)).empty());
  }
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

TEST(SimulatedPortTest, receive__what_does_not_fit_the_receive_buffer_is_an_overrun) {
  SimulatedNetwork network({.jitter = 0us, .receive_bytes = 200});
  const auto a = network.make_port(0);
  const auto b = network.make_port(1);
  for (std::uint32_t i = 0; i < 4; ++i) send(*a, 1, i, i == 1 ? 100 : 8);  // 72, 164, 72, 72 bytes
  EXPECT_EQ(numbers(b->receive(Time(1ms))), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(b->statistics().rx_overruns, 2u);
  send(*a, 1, 4);
  EXPECT_EQ(numbers(b->receive(Time(1ms))), (std::vector<std::uint32_t>{4}));
}

TEST(SimulatedPortTest, links__are_crossed_before_the_delay) {
  SimulatedNetwork network(
      {.delay = 20us,
       .jitter = 0us,
       .links = FabricOptions{.egress = {.bits_per_second = 1e9, .queue_bytes = 1500}}});
  const auto a = network.make_port(0);
  const auto b = network.make_port(1);
  // 1000 bytes on the wire, 8 us each.
  for (std::uint32_t i = 0; i < 3; ++i) send(*a, 1, i, 1000 - TARPON_HEADER_BYTES - kWireOverhead);
  EXPECT_EQ(network.next_arrival(1), kNever);
  std::vector<std::uint32_t> got;
  std::vector<Time> times;
  while (network.next_arrival() != kNever) {
    network.advance_to(network.next_arrival());
    for (const std::uint32_t number : numbers(b->receive(network.now()))) {
      got.push_back(number);
      times.push_back(network.now());
    }
  }
  EXPECT_EQ(got, (std::vector<std::uint32_t>{0}));  // 2000 bytes do not fit 1500
  EXPECT_EQ(times, (std::vector<Time>{Time(28us)}));
  network.heal();
  send(*a, 1, 7);
  EXPECT_EQ(network.next_arrival(1), network.now() + 20us);
}

/// Loses packet 1, holds packet 2, and writes down what becomes of all.
class Watcher : public SimulatedTraffic {
 public:
  Route route(Time, Rank from, Rank to, std::span<const std::byte> packet) override {
    EXPECT_EQ(from, 0);
    EXPECT_EQ(to, 1);
    const std::uint32_t number = number_of({packet.data(), 0, 0});
    if (number == 1) return {.lost = "gone"};
    if (number == 2) return {.not_before = Time(1ms)};
    return {};
  }
  void ended(Time, Rank, Rank, std::span<const std::byte> packet, std::string_view fate) override {
    fates.emplace_back(number_of({packet.data(), 0, 0}), fate);
  }
  std::vector<std::pair<std::uint32_t, std::string_view>> fates;
};

TEST(SimulatedPortTest, watch__sees_and_changes_the_way_of_each_packet) {
  Watcher watcher;
  SimulatedNetwork network({.jitter = 0us, .receive_bytes = 150});
  network.watch(&watcher);
  const auto a = network.make_port(0);
  const auto b = network.make_port(1);
  for (std::uint32_t i = 0; i < 5; ++i) send(*a, 1, i);
  EXPECT_EQ(numbers(b->receive(Time(100us))), (std::vector<std::uint32_t>{0, 3}));
  EXPECT_TRUE(b->receive(Time(999us)).empty());
  EXPECT_EQ(numbers(b->receive(Time(1ms))), (std::vector<std::uint32_t>{2}));
  const std::vector<std::pair<std::uint32_t, std::string_view>> expected = {
      {1, "gone"}, {0, "delivered"}, {3, "delivered"}, {4, "overrun"}, {2, "delivered"}};
  EXPECT_EQ(watcher.fates, expected);
}

TEST(SimulatedPortTest, inject__brings_a_packet_that_nobody_sent) {
  SimulatedNetwork network({.jitter = 0us});
  const auto b = network.make_port(1);
  std::vector<std::byte> packet(TARPON_HEADER_BYTES, std::byte{0});
  packet[0] = std::byte{9};
  network.inject(0, 1, packet);
  EXPECT_EQ(numbers(b->receive(Time(20us))), (std::vector<std::uint32_t>{9}));
}

TEST(SimulatedPortTest, transmit_frames__no_more_than_the_port_has) {
  SimulatedNetwork network({.frames = 3});
  const auto a = network.make_port(0);
  EXPECT_EQ(a->transmit_frames(2).size(), 2u);
  EXPECT_EQ(a->transmit_frames(100).size(), 3u);
  EXPECT_EQ(a->transmit_frames(0).size(), 0u);
  EXPECT_EQ(a->unsent(), 0u);
  EXPECT_FALSE(a->holds(5));
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
}  // namespace tarpon::simulated_port_test
