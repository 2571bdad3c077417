// Datagrams of strangers at a live UDP port: they are refused, and counted apart.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/live_ports.h"

namespace tarpon::ports_strangers_test {
namespace {

using namespace test;

TEST_P(PortTest, strangers_are_refused_and_counted_apart) {
  const auto [to, sender, receiver] = make_pair_of_job(open_socket());
  const UdpSocket stranger = open_socket();
  tarpon_header good{};
  good.magic = TARPON_MAGIC;
  good.version = TARPON_WIRE_VERSION;
  good.job = kTestJob;
  std::vector<std::vector<std::byte>> junk;
  const auto add = [&junk](const tarpon_header& header, std::size_t bytes) {
    std::vector<std::byte> datagram(std::max(bytes, sizeof header));
    std::memcpy(datagram.data(), &header, sizeof header);
    datagram.resize(bytes);
    junk.push_back(datagram);
  };
  for (const std::size_t bytes : {0u, 1u, 8u, 63u}) add(good, bytes);
  const auto add_changed = [&](const std::function<void(tarpon_header&)>& change) {
    tarpon_header bad = good;
    change(bad);
    add(bad, 64);
    add(bad, 1472);
  };
  add_changed([](tarpon_header& h) { h.magic = 0x5450; });
  add_changed([](tarpon_header& h) { h.magic ^= 0x8000; });
  add_changed([](tarpon_header& h) { h.version = 0; });
  add_changed([](tarpon_header& h) { h.version = TARPON_WIRE_VERSION + 1; });
  for (std::uint32_t bit = 0; bit < 32; ++bit) {
    add_changed([bit](tarpon_header& h) { h.job ^= 1u << bit; });
  }
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& datagram : junk) {
      ASSERT_EQ(::sendto(stranger.fd(), datagram.data(), datagram.size(), 0,
                         reinterpret_cast<const sockaddr*>(&to), sizeof to),
                static_cast<ssize_t>(datagram.size()));
    }
  }
  send(*sender, run_of(100, 1408, 1));
  Inbox inbox;
  collect(*receiver, inbox, 100);
  EXPECT_TRUE(each_once(inbox, 100));
  std::this_thread::sleep_for(2ms);  // the count may be 1 ms old
  const PortStatistics counted = receiver->statistics();
  EXPECT_EQ(counted.rx_packets, 100u);
  EXPECT_EQ(counted.rx_refused, junk.size() * kRounds);
  EXPECT_EQ(counted.rx_overruns, 0u);
}

TEST_P(PortTest, strangers_do_not_fill_the_receive_buffer) {
  const auto [to, sender, receiver] = make_pair_of_job(open_socket({.receive_buffer = 100'000}));
  const UdpSocket stranger = open_socket();
  const std::vector<std::byte> junk(1472);
  for (int i = 0; i < 1000; ++i) {
    ::sendto(stranger.fd(), junk.data(), junk.size(), 0, reinterpret_cast<const sockaddr*>(&to),
             sizeof to);
  }
  send(*sender, run_of(20, 1408, 1));
  Inbox inbox;
  collect(*receiver, inbox, 20);
  EXPECT_TRUE(each_once(inbox, 20));
}

TEST_P(PortTest, what_comes_to_the_port_of_a_flow_is_refused_and_counted) {
  auto flows = open_flows("127.0.0.1", 4);
  ASSERT_TRUE(flows) << flows.error().message;
  std::vector<sockaddr_in> targets;
  for (const UdpSocket& flow : *flows) targets.push_back(flow.local());
  UdpSocket socket = open_socket();
  const std::vector<sockaddr_in> peers = {socket.local()};
  auto port = make(std::move(socket), peers, {.job = kTestJob}, {std::move(*flows), {}});
  const UdpSocket stranger = open_socket();
  for (const sockaddr_in& to : targets) {
    for (int i = 0; i < 10; ++i) {
      ::sendto(stranger.fd(), "junk", 4, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    }
  }
  EXPECT_EQ(port->statistics().rx_refused, targets.size() * 10);
}

TEST_P(PortTest, unknown_source) {
  auto ports = make_world(2);
  UdpSocket stranger = open_socket();
  UdpSocket target = open_socket();
  const std::vector<sockaddr_in> both = {stranger.local(), target.local()};
  const std::vector<sockaddr_in> only_target = {target.local()};
  auto receiver = make(std::move(target), only_target);
  auto sender = make(std::move(stranger), both);
  send(*sender, run_of(5, 640, 1));
  Inbox inbox;
  collect(*receiver, inbox, 5);
  EXPECT_EQ(inbox.sources, (std::map<Rank, int>{{kUnknownRank, 5}}));
}

}  // namespace
}  // namespace tarpon::ports_strangers_test
