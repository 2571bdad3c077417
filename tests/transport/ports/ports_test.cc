// The live UDP ports on loopback: what one port sends, another one receives, whatever moves it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>

#include "tests/support/live_ports.h"
#include "transport/clock.h"
#include "transport/ports/rx_batch.h"
#include "transport/ports/udp_train.h"

namespace tarpon::ports_test {
namespace {

using namespace test;

TEST_P(PortTest, capabilities) {
  auto ports = make_world(1);
  const PortCapabilities& capabilities = ports[0]->capabilities();
  EXPECT_EQ(capabilities.name, GetParam().name);
  EXPECT_EQ(capabilities.max_payload, 1408u);
  EXPECT_TRUE(capabilities.gathers);
  EXPECT_TRUE(capabilities.checksums);
  EXPECT_EQ(capabilities.burst, 44u);
  EXPECT_GT(capabilities.receive_bytes, 0u);
}

TEST_P(PortTest, lent_trains) {
  constexpr std::size_t kCount = 2000;
  constexpr std::uint32_t kLength = 1408;
  auto ports = make_world(2);
  std::vector<std::byte> lent(kCount * kLength);
  for (std::uint32_t i = 0; i < kCount; ++i) fill(&lent[i * kLength], i, kLength);
  send(*ports[0], run_of(kCount, kLength, 1), {.lent = &lent, .on_back_pressure = {}});
  drain(*ports[0]);
  Inbox inbox;
  collect(*ports[1], inbox, kCount);
  EXPECT_TRUE(each_once(inbox, kCount));
  EXPECT_EQ(inbox.sources, (std::map<Rank, int>{{Rank{0}, kCount}}));
  const PortStatistics tx = ports[0]->statistics();
  EXPECT_EQ(tx.tx_packets, kCount);
  EXPECT_EQ(tx.tx_bytes, kCount * (kLength + 64));
  EXPECT_LT(tx.tx_units, kCount / 40);
  EXPECT_EQ(tx.tx_dropped, 0u);
  const PortStatistics rx = ports[1]->statistics();
  EXPECT_EQ(rx.rx_packets, kCount);
  EXPECT_EQ(rx.rx_bytes, inbox.bytes);
  EXPECT_LT(rx.rx_units, rx.rx_packets);
  EXPECT_EQ(rx.rx_overruns, 0u);
  EXPECT_GT(rx.system_calls, 0u);
  EXPECT_GE(rx.waits, 1u);
}

TEST_P(PortTest, flows__leave_from_ports_of_their_own_and_belong_to_one_rank) {
  auto flows = open_flows("127.0.0.1", 4);
  ASSERT_TRUE(flows) << flows.error().message;
  std::vector<UdpSocket> sockets;
  sockets.push_back(open_socket());
  sockets.push_back(open_socket());
  const UdpSocket stranger = open_socket();
  const std::vector<sockaddr_in> peers = {sockets[0].local(), sockets[1].local(), stranger.local()};
  std::vector<std::uint16_t> numbers = {sockets[0].local().sin_port};
  std::vector<FlowSource> sources;
  for (const UdpSocket& flow : *flows) {
    sources.push_back({flow.local(), 0});
    numbers.push_back(flow.local().sin_port);
  }
  auto from = make(std::move(sockets[0]), peers, {}, {std::move(*flows), sources});
  auto to = make(std::move(sockets[1]), peers, {}, {{}, sources});
  EXPECT_EQ(from->capabilities().flows, 4u);
  EXPECT_EQ(to->capabilities().flows, 1u);
  auto messages = run_of(400, 1408, 1);
  for (Message& message : messages)
    message.flow = static_cast<std::uint8_t>(message.number / 20 % 4);
  send(*from, messages);
  Inbox inbox;
  collect(*to, inbox, 400);
  EXPECT_TRUE(each_once(inbox, 400));
  EXPECT_EQ(inbox.sources, (std::map<Rank, int>{{Rank{0}, 400}}));
  EXPECT_LE(from->statistics().tx_units, 400u / 20 + 6);  // a train each, or cut by the frames
  for (std::uint8_t flow = 0; flow < 4; ++flow) {
    send(*from, {{.peer = 2, .number = flow, .length = 64, .flow = flow}});
    sockaddr_in address{};
    socklen_t size = sizeof address;
    std::array<std::byte, 200> bytes;
    pollfd ready{stranger.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
    ASSERT_EQ(::recvfrom(stranger.fd(), bytes.data(), bytes.size(), 0,
                         reinterpret_cast<sockaddr*>(&address), &size),
              128);
    EXPECT_EQ(address.sin_port, numbers[flow]);
  }
  const auto before = from->statistics();
  send(*from, {{.peer = 1, .number = 0, .length = 64, .flow = 4}});
  EXPECT_EQ(from->statistics().tx_dropped, before.tx_dropped + 1);
}

TEST_P(PortTest, mixed_sizes_and_peers) {
  const std::uint32_t seed = 20240607;
  RecordProperty("seed", static_cast<int>(seed));
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  auto ports = make_world(4);
  std::vector<Message> messages(3000);
  std::map<Rank, std::size_t> wanted;
  for (std::uint32_t i = 0; i < messages.size(); ++i) {
    // Runs of one size and peer with breaks, and empty payloads among them.
    const bool same = i > 0 && random() % 4 != 0;
    const Message fresh = {.peer = static_cast<Rank>(random() % 4),
                           .number = 0,
                           .length = static_cast<std::uint32_t>(random() % 23) * 64};
    messages[i] = same ? messages[i - 1] : fresh;
    messages[i].number = i;
    ++wanted[messages[i].peer];
  }
  send(*ports[2], messages);
  drain(*ports[2]);
  for (Rank rank = 0; rank < 4; ++rank) {
    Inbox inbox;
    collect(*ports[rank], inbox, wanted[rank]);
    EXPECT_EQ(inbox.packets, wanted[rank]);
    EXPECT_EQ(inbox.seen.size(), wanted[rank]);
    for (const auto& [number, times] : inbox.seen) EXPECT_EQ(messages[number].peer, rank);
    EXPECT_EQ(inbox.sources, (std::map<Rank, int>{{Rank{2}, static_cast<int>(wanted[rank])}}));
  }
}

TEST_P(PortTest, short_last_segment_joins_the_train) {
  auto ports = make_world(2);
  auto messages = run_of(12, 1408, 1);
  messages[9].length = 128;
  send(*ports[0], messages);
  drain(*ports[0]);
  Inbox inbox;
  collect(*ports[1], inbox, 12);
  EXPECT_TRUE(each_once(inbox, 12));
  EXPECT_EQ(ports[0]->statistics().tx_units, 2u);
}

TEST_P(PortTest, largest_payload) {
  const std::uint32_t payload = max_payload_for_mtu(65536);
  auto ports = make_world(2, {.max_payload = payload});
  EXPECT_EQ(ports[0]->capabilities().burst, 1u);
  send(*ports[0], run_of(100, payload, 1));
  drain(*ports[0]);
  Inbox inbox;
  collect(*ports[1], inbox, 100);
  EXPECT_TRUE(each_once(inbox, 100));
}

TEST_P(PortTest, gso_off) {
  auto ports = make_world(2, {.gso_segments = 1});
  EXPECT_EQ(ports[0]->capabilities().burst, 1u);
  send(*ports[0], run_of(700, 1408, 1));
  drain(*ports[0]);
  Inbox inbox;
  collect(*ports[1], inbox, 700);
  EXPECT_TRUE(each_once(inbox, 700));
  EXPECT_EQ(ports[0]->statistics().tx_units, 700u);
}

TEST_P(PortTest, train_refused_by_the_kernel_goes_packet_by_packet) {
  UdpSocket from = open_socket();
  UdpSocket to = open_socket();
  // GSO needs checksums, so the kernel answers EINVAL to trains and takes single packets.
  const int one = 1;
  ASSERT_EQ(::setsockopt(from.fd(), SOL_SOCKET, SO_NO_CHECK, &one, sizeof one), 0);
  const std::vector<sockaddr_in> peers = {from.local(), to.local()};
  auto sender = make(std::move(from), peers);
  auto receiver = make(std::move(to), peers);
  send(*sender, run_of(600, 1408, 1));
  drain(*sender);
  Inbox inbox;
  collect(*receiver, inbox, 600);
  EXPECT_TRUE(each_once(inbox, 600));
  EXPECT_EQ(sender->statistics().tx_units, 600u);
  EXPECT_EQ(sender->statistics().tx_dropped, 0u);
}

TEST_P(PortTest, trains_come_back_after_the_kernel_refused_some) {
  UdpSocket from = open_socket();
  UdpSocket to = open_socket();
  const FileDescriptor handle(::fcntl(from.fd(), F_DUPFD_CLOEXEC, 0));
  const auto set_no_check = [&handle](int on) {
    ASSERT_EQ(::setsockopt(handle.get(), SOL_SOCKET, SO_NO_CHECK, &on, sizeof on), 0);
  };
  const std::vector<sockaddr_in> peers = {from.local(), to.local()};
  auto sender = make(std::move(from), peers);
  auto receiver = make(std::move(to), peers);
  Inbox inbox;
  const auto units_of_run = [&](std::uint32_t packets) {
    const std::uint64_t before = sender->statistics().tx_units;
    const std::size_t already = inbox.packets;
    send(*sender, run_of(packets, 1408, 1));
    drain(*sender);
    collect(*receiver, inbox, already + packets);
    EXPECT_EQ(inbox.packets, already + packets);
    return sender->statistics().tx_units - before;
  };
  set_no_check(1);
  EXPECT_EQ(units_of_run(50), 50u);
  set_no_check(0);
  const std::uint32_t pause = TrainPool::kFirstPause;
  EXPECT_GE(units_of_run(pause), pause - 50);
  EXPECT_LE(units_of_run(440), 440u / 44 + 50 + 2);  // a few singles end the pause
  set_no_check(1);
  EXPECT_EQ(units_of_run(50), 50u);
  EXPECT_EQ(sender->statistics().tx_dropped, 0u);
}

TEST_P(PortTest, empty_datagram_is_delivered) {
  UdpSocket from = open_socket();
  UdpSocket to = open_socket();
  const sockaddr_in target = to.local();
  auto receiver = make(std::move(to), {from.local(), target});
  ASSERT_EQ(
      ::sendto(from.fd(), nullptr, 0, 0, reinterpret_cast<const sockaddr*>(&target), sizeof target),
      0);
  std::size_t packets = 0;
  for (const Time end = monotonic_now() + kPatience; packets == 0 && monotonic_now() < end;) {
    receiver->wait(monotonic_now(), monotonic_now() + 50ms);
    for (const RxPacket& packet : receiver->receive(monotonic_now())) {
      EXPECT_EQ(packet.length, 0u);
      EXPECT_EQ(packet.source, 0u);
      ++packets;
    }
  }
  EXPECT_EQ(packets, 1u);
}

TEST_P(PortTest, packets_taken_in_any_order_and_number) {
  // A decorator may drop and reorder what it passes on; frames must not get lost or shared.
  auto ports = make_world(2);
  Inbox inbox;
  std::uint32_t number = 0;
  for (int round = 0; round < 200; ++round) {
    auto frames = ports[0]->transmit_frames(9);
    ASSERT_EQ(frames.size(), 9u);
    for (TxPacket& packet : frames) {
      prepare(packet, {.peer = 1, .number = number, .length = 192}, 0, {});
      if (&packet != &frames[1] && &packet != &frames[8]) ++number;
    }
    // 1 and 8 have the numbers of their successors, and are the two that are not passed on.
    std::swap(frames[1], frames[8]);
    std::swap(frames[1], frames[7]);
    std::swap(frames[0], frames[6]);
    ports[0]->transmit(frames.first(7));
    drain(*ports[0]);
    collect(*ports[1], inbox, inbox.packets + 7);
  }
  EXPECT_TRUE(each_once(inbox, 1400));
  EXPECT_EQ(ports[0]->transmit_frames(1000).size(), 264u + (GetParam().lanes - 1) * 4 * 44);
}

TEST_P(PortTest, packet_for_nobody_is_counted) {
  auto ports = make_world(2);
  auto frames = ports[0]->transmit_frames(2);
  prepare(frames[0], {.peer = 7, .number = 0, .length = 64}, 0, {});
  prepare(frames[1], {.peer = 1, .number = 0, .length = 64}, 0, {});
  ports[0]->transmit(frames);
  Inbox inbox;
  collect(*ports[1], inbox, 1);
  EXPECT_EQ(inbox.packets, 1u);
  EXPECT_EQ(ports[0]->statistics().tx_dropped, 1u);
  EXPECT_EQ(ports[0]->unsent(), 0u);
}

TEST_P(PortTest, overruns_are_counted) {
  auto ports = make_world(2, {.gso_segments = 1}, {.receive_buffer = 100'000});
  auto messages = run_of(1000, 1408, 1);
  messages.pop_back();
  send(*ports[0], messages);
  drain(*ports[0]);
  Inbox inbox;
  for (int quiet = 0; quiet < 3;) {
    const std::size_t before = inbox.packets;
    drive(*ports[1], inbox, 10ms);
    quiet = inbox.packets == before ? quiet + 1 : 0;
  }
  const std::size_t before = inbox.packets;
  EXPECT_LT(before, 999u);
  send(*ports[0], {{.peer = 1, .number = 999, .length = 1408}});  // reports the losses before it
  collect(*ports[1], inbox, before + 1);
  EXPECT_EQ(inbox.packets + ports[1]->statistics().rx_overruns, 1000u);
}

TEST_P(PortTest, address_is_free_after_the_end) {
  UdpSocketOptions options;
  for (int round = 0; round < 10; ++round) {
    UdpSocket socket = open_socket(options);
    options.port = socket.port();
    auto port = make(std::move(socket), {socket.local()});
    port->receive(monotonic_now());
    port->wait(monotonic_now(), monotonic_now() + 1ms);
    port.reset();
    auto again = UdpSocket::open(options);
    ASSERT_TRUE(again) << again.error().message;
  }
}

TEST_P(PortTest, dead_socket_is_a_failure) {
  UdpSocket socket = open_socket();
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ASSERT_GE(::dup2(null, socket.fd()), 0);
  ::close(null);
  const std::vector<sockaddr_in> peers = {socket.local()};
  auto port = make(std::move(socket), peers);
  EXPECT_FALSE(port->failure());
  send(*port, {{.peer = 0, .number = 0, .length = 64}});
  ASSERT_TRUE(port->failure());
  EXPECT_NE(port->failure()->message.find("UDP port"), std::string::npos);
  EXPECT_EQ(port->unsent(), 0u);
  EXPECT_EQ(port->statistics().tx_dropped, 1u);
  EXPECT_EQ(port->statistics().send_error, ENOTSOCK);
  EXPECT_TRUE(port->transmit_frames(1).empty());
  EXPECT_TRUE(port->receive(monotonic_now()).empty());
  port->wait(monotonic_now(), kNever);
}

TEST_P(PortTest, bad_options_are_named) {
  const std::vector<sockaddr_in> one = {*ipv4_address("127.0.0.1", 9)};
  const auto message = [&](UdpPortOptions options, std::vector<sockaddr_in> peers) {
    auto port = GetParam().make(open_socket(), std::move(peers), options, {});
    EXPECT_FALSE(port);
    EXPECT_EQ(port.error().code, Error::Code::invalid_argument);
    return port.error().message;
  };
  EXPECT_EQ(message({.max_payload = 100}, one),
            "max_payload 100: give a multiple of 64 from 64 to 65408");
  EXPECT_EQ(message({.max_payload = 65536}, one),
            "max_payload 65536: give a multiple of 64 from 64 to 65408");
  EXPECT_EQ(message({.gso_segments = 65}, one), "gso_segments 65: give 1 (off) to 64");
  EXPECT_EQ(message({.lanes = 0}, one), "0 lanes: give 1 to 4");
  EXPECT_EQ(message({.lanes = 5}, one), "5 lanes: give 1 to 4");
  EXPECT_EQ(message({}, {}), "0 peers: give the address of every rank, 1 to 65534");
  EXPECT_EQ(message({}, {sockaddr_in{}}), "address of rank 0: give an IPv4 address and a port");
}

INSTANTIATE_TEST_SUITE_P(
    live, PortTest,
    testing::Values(Kind{"mmsg", &make_mmsg_port}, Kind{"uring", &make_uring_port},
                    Kind{"mmsg", &make_mmsg_port, 3}, Kind{"uring", &make_uring_port, 2}),
    [](const auto& test) {
      const std::uint32_t lanes = test.param.lanes;
      return std::string(test.param.name) + (lanes == 1 ? "" : std::to_string(lanes));
    });

}  // namespace
}  // namespace tarpon::ports_test
