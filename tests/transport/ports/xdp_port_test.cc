// The AF_XDP port over a veth pair, one end of it in another network namespace.
#include "transport/ports/xdp/xdp_port.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "tests/support/private_network.h"
#include "transport/clock.h"
#include "transport/ports/mmsg_port.h"
#include "transport/ports/udp_options.h"

namespace tarpon::xdp_port_test {
namespace {

using namespace testing_support;
using testing::HasSubstr;

constexpr std::uint32_t kJob = 77;
constexpr const char* kHere = "10.8.0.1";
constexpr const char* kThere = "10.8.0.2";
constexpr Duration kPatience = 20s;  // bound of every loop; never reached by a working port

constexpr Rank kFlowRank = 7;  // told apart from rank 0, so that a test sees which port it was

std::byte pattern(std::uint32_t number, std::uint32_t at) {
  return static_cast<std::byte>((number * 131u + at * 7u + (at >> 8)) & 0xff);
}

/// A DATA packet that the XDP program takes; `number` is its slot. In flows by turns, where there
/// are some.
void prepare(TxPacket& packet, Rank peer, std::uint32_t number, std::uint32_t length,
             std::uint32_t operation = 0, std::uint32_t flows = 1) {
  tarpon_header header{};
  header.magic = TARPON_MAGIC;
  header.version = TARPON_WIRE_VERSION;
  header.type = TARPON_DATA;
  header.job = kJob;
  header.length = static_cast<std::uint16_t>(length);
  header.slot = number;
  header.operation = operation;
  header.stage = static_cast<std::uint8_t>(std::countr_zero(flows) << TARPON_FLOWS_SHIFT);
  std::memcpy(packet.header, &header, sizeof header);
  packet.peer = peer;
  packet.flow = static_cast<std::uint8_t>(number % flows);
  packet.length = length;
  packet.payload = packet.room;
  for (std::uint32_t i = 0; i < length; ++i) packet.room[i] = pattern(number, i);
}

/// Slots received, each byte checked.
struct Inbox {
  std::map<std::uint32_t, int> seen;
  std::size_t packets = 0;
  std::size_t of_flows = 0;  // from another source port than the first

  void take(std::span<const RxPacket> batch, Rank source) {
    for (const RxPacket& packet : batch) {
      tarpon_header header{};
      ASSERT_GE(packet.length, sizeof header);
      std::memcpy(&header, packet.data, sizeof header);
      ASSERT_EQ(packet.length, sizeof header + header.length);
      ASSERT_EQ(packet.source, packet.source == kFlowRank ? kFlowRank : source);
      of_flows += packet.source == kFlowRank;
      for (std::uint32_t i = 0; i < header.length; ++i) {
        ASSERT_EQ(packet.data[sizeof header + i], pattern(header.slot, i)) << header.slot;
      }
      ++seen[header.slot];
      ++packets;
    }
  }
};

void collect(Port& port, Inbox& inbox, std::size_t packets, Rank source,
             Duration patience = kPatience) {
  const Time end = monotonic_now() + patience;
  while (inbox.packets < packets && monotonic_now() < end) {
    const Time now = monotonic_now();
    for (auto batch = port.receive(now); !batch.empty(); batch = port.receive(now)) {
      inbox.take(batch, source);
    }
    if (inbox.packets < packets) port.wait(now, now + 50ms);
  }
}

/// Sends packets [first, first + count) of operation `operation`; at most 64 at once, so that
/// nothing between the ports overflows while `drain` runs in between.
void send(Port& port, Rank peer, std::uint32_t first, std::uint32_t count, std::uint32_t length,
          const std::function<void()>& drain, std::uint32_t operation = 0) {
  const Time end = monotonic_now() + kPatience;
  for (std::uint32_t sent = 0; sent < count && monotonic_now() < end;) {
    const auto frames = port.transmit_frames(std::min(count - sent, 64u));
    for (std::size_t i = 0; i < frames.size(); ++i) {
      prepare(frames[i], peer, first + sent + static_cast<std::uint32_t>(i), length, operation,
              port.capabilities().flows);
    }
    port.transmit(frames);
    sent += static_cast<std::uint32_t>(frames.size());
    drain();
  }
}

UdpSocket open_socket(const char* address) {
  auto socket = UdpSocket::open({.address = address});
  if (!socket) throw std::runtime_error(socket.error().message);
  return std::move(*socket);
}

std::vector<sockaddr_in> addresses(const UdpSocket& here, const UdpSocket& there) {
  return {here.local(), there.local()};
}

struct Settings {
  int mtu = 1500;
  int queues = 1;
  std::uint32_t here_queue = 0;
  std::uint32_t there_queue = 0;
  std::uint32_t flows = 1;  // from here to there
};

/// Rank 0 here, rank 1 in the far namespace.
class XdpPortTest : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_PRIVATE_NETWORK(); }

  void connect(const Settings& settings = {}) {
    far_.emplace();
    pair_.emplace(settings.mtu, settings.queues);
    far_->take("vb");
    far_->run("ip address add 10.8.0.2/24 dev vb");
    far_->run("ip link set vb up");
    run_command("ip address add 10.8.0.1/24 dev va");
    UdpSocket here = open_socket(kHere);
    auto flows = open_flows(kHere, settings.flows);
    ASSERT_TRUE(flows) << flows.error().message;
    flows_.sockets = std::move(*flows);
    for (const UdpSocket& flow : flows_.sockets) {
      flows_.sources.push_back({flow.local(), kFlowRank});
    }
    std::optional<UdpSocket> there;
    unsigned vb = 0;
    {
      const Inside inside(*far_);
      there.emplace(open_socket(kThere));
      vb = ::if_nametoindex("vb");
    }
    peers_ = addresses(here, *there);
    payload_ = max_payload_for_mtu(static_cast<std::uint32_t>(settings.mtu));
    // Both programs come before both ports: a port asks for its peer's MAC at once.
    here_ = open(std::move(here), pair_->a(), settings.here_queue);
    const Inside inside(*far_);
    there_ = open(std::move(*there), vb, settings.there_queue);
  }

  void TearDown() override {
    here_.reset();
    there_.reset();
    pair_.reset();
  }

  std::unique_ptr<Port> open(UdpSocket socket, unsigned interface, std::uint32_t queue) {
    return open(std::move(socket), interface, std::vector<std::uint32_t>{queue});
  }

  std::unique_ptr<Port> open(UdpSocket socket, unsigned interface,
                             const std::vector<std::uint32_t>& numbers) {
    const XdpPortOptions options{.interface = interface,
                                 .queues = numbers,
                                 .job = kJob,
                                 .max_payload = payload_,
                                 .busy_poll = busy_poll_};
    auto program = xdp::Program::use(interface, xdp::AttachMode::native);
    EXPECT_TRUE(program) << program.error().message;
    auto queues = XdpQueues::open(options);
    EXPECT_TRUE(queues) << queues.error().message;
    UdpFlows flows{std::exchange(flows_.sockets, {}), flows_.sources};
    if (grouped_) {
      auto group = join_group(socket, group_address(kJob, ntohs(peers_[0].sin_port)), kJob);
      EXPECT_TRUE(group) << group.error().message;
      flows.group = std::move(*group);
    }
    auto port =
        make_xdp_port(std::move(socket), std::make_unique<xdp::OwnAccess>(std::move(*program)),
                      std::move(*queues), peers_, options, std::move(flows));
    EXPECT_TRUE(port) << port.error().message;
    return std::move(*port);
  }

  /// `count` packets of `length` from here to `peer`, all of them there.
  void exchange(std::uint32_t first, std::uint32_t count, std::uint32_t length, Rank peer = 1) {
    Inbox inbox;
    send(*here_, peer, first, count, length,
         [&] { inbox.take(there_->receive(monotonic_now()), 0); });
    collect(*there_, inbox, count, 0);
    ASSERT_EQ(inbox.seen.size(), count) << length;
    ASSERT_EQ(inbox.packets, count);
  }

  std::optional<FarNamespace> far_;
  std::optional<VethPair> pair_;
  std::vector<sockaddr_in> peers_;
  std::uint32_t payload_ = 0;
  bool busy_poll_ = false;
  bool grouped_ = false;  // both are members of one multicast group
  UdpFlows flows_;        // of what is here; its sockets until a port has them
  std::unique_ptr<Port> here_;
  std::unique_ptr<Port> there_;
};

TEST_F(XdpPortTest, packets__of_every_size_come_as_they_were_sent) {
  connect();
  for (const std::uint32_t length : {0u, 1u, 64u, 1000u, 1408u}) exchange(0, 500, length);
  Inbox back;
  send(*there_, 0, 0, 500, 1408, [&] { back.take(here_->receive(monotonic_now()), 1); });
  collect(*here_, back, 500, 1);
  EXPECT_EQ(back.seen.size(), 500u);
  const PortStatistics sent = here_->statistics();
  EXPECT_EQ(sent.tx_packets, 2500u);
  EXPECT_EQ(sent.tx_dropped, 0u);
  EXPECT_EQ(sent.local_path, 0u);
  EXPECT_EQ(sent.rx_packets, 500u);
  EXPECT_EQ(there_->statistics().slow_path, 0u);
  EXPECT_EQ(there_->statistics().rx_packets, 2500u);
}

TEST_F(XdpPortTest, packets__of_several_buffers_come_as_they_were_sent) {
  connect({.mtu = 9000});
  ASSERT_EQ(payload_, 8896u);
  for (const std::uint32_t length : {0u, 3584u, 4096u, 8896u}) exchange(0, 200, length);
  EXPECT_EQ(there_->statistics().slow_path, 0u);
}

TEST_F(XdpPortTest, flows__leave_from_ports_of_their_own) {
  connect({.flows = 4});
  EXPECT_EQ(here_->capabilities().flows, 4u);
  EXPECT_EQ(there_->capabilities().flows, 1u);
  Inbox inbox;
  send(*here_, 1, 0, 400, 1408, [&] { inbox.take(there_->receive(monotonic_now()), 0); });
  collect(*there_, inbox, 400, 0);
  EXPECT_EQ(inbox.seen.size(), 400u);
  EXPECT_EQ(inbox.of_flows, 300u);
  EXPECT_EQ(here_->statistics().local_path, 0u);
  EXPECT_EQ(there_->statistics().slow_path, 0u);
}

TEST_F(XdpPortTest, flows__of_the_socket_beside_leave_from_the_same_ports) {
  connect({.queues = 2, .here_queue = 0, .there_queue = 1, .flows = 4});
  Inbox inbox;
  send(*here_, 1, 0, 200, 1408, [&] { inbox.take(there_->receive(monotonic_now()), 0); });
  collect(*there_, inbox, 200, 0);
  EXPECT_EQ(inbox.of_flows, 150u);
  EXPECT_EQ(there_->statistics().slow_path, 200u);
}

TEST_F(XdpPortTest, group__is_sent_to_and_heard_by_af_xdp) {
  grouped_ = true;
  connect();
  for (Port* port : {here_.get(), there_.get()}) ASSERT_TRUE(port->capabilities().multicasts);
  Inbox inbox;
  const auto drain = [&] { inbox.take(there_->receive(monotonic_now()), 0); };
  send(*here_, kAllRanks, 0, 200, 1408, drain);
  send(*here_, 1, 200, 200, 1408, drain);
  collect(*there_, inbox, 400, 0);
  EXPECT_EQ(inbox.seen.size(), 400u);
  EXPECT_EQ(here_->statistics().local_path, 0u);
  EXPECT_EQ(there_->statistics().slow_path, 0u);
  EXPECT_EQ(here_->receive(monotonic_now()).size(), 0u) << "a sender does not hear itself";

  there_->end_multicast();
  EXPECT_FALSE(there_->capabilities().multicasts);
  send(*here_, kAllRanks, 400, 50, 1408, drain);
  send(*here_, 1, 450, 50, 1408, drain);
  collect(*there_, inbox, 450, 0);
  EXPECT_EQ(inbox.seen.count(400), 0u);
  EXPECT_EQ(inbox.seen.size(), 450u);
}

TEST_F(XdpPortTest, group__on_a_queue_of_others_is_heard_by_the_socket) {
  grouped_ = true;
  connect({.queues = 2, .here_queue = 0, .there_queue = 1});
  exchange(0, 200, 1408, kAllRanks);
  EXPECT_EQ(there_->statistics().slow_path, 200u);
}

TEST_F(XdpPortTest, group__is_heard_after_the_mac_of_the_interface_has_changed) {
  grouped_ = true;
  connect();
  far_->run("ip link set vb address 02:00:00:00:00:77");
  for (int i = 0; i < 10; ++i) {
    there_->receive(monotonic_now());
    there_->wait(monotonic_now(), monotonic_now() + 10ms);
  }
  exchange(0, 100, 1408, kAllRanks);
  EXPECT_EQ(there_->statistics().slow_path, 0u);
}

TEST_F(XdpPortTest, busy_poll__that_has_no_effect_does_no_harm) {
  busy_poll_ = true;
  connect();
  exchange(0, 500, 1408);
}

TEST_F(XdpPortTest, packets__on_a_queue_of_others_come_by_the_socket) {
  connect({.queues = 2, .here_queue = 0, .there_queue = 1});
  exchange(0, 200, 1408);
  EXPECT_EQ(there_->statistics().slow_path, 200u);
}

TEST_F(XdpPortTest, receive_bytes__fit_one_queue) {
  connect({.queues = 2});
  const std::uint64_t one = here_->capabilities().receive_bytes;
  EXPECT_EQ(one, xdp_receive_budget(payload_));
  here_.reset();
  here_ = open(open_socket(kHere), pair_->a(), std::vector<std::uint32_t>{0, 1});
  EXPECT_EQ(here_->capabilities().receive_bytes, one);
}

TEST_F(XdpPortTest, peers__on_this_host_are_reached_by_the_socket) {
  connect();
  run_command("ip link set lo up");
  UdpSocket neighbour = open_socket(kHere);
  peers_[1] = neighbour.local();
  here_.reset();
  here_ = open(open_socket(kHere), pair_->a(), 0);
  auto other = make_mmsg_port(std::move(neighbour), peers_, {.max_payload = payload_});
  ASSERT_TRUE(other) << other.error().message;
  Inbox inbox;
  send(*here_, 1, 0, 100, 1408, [] {});
  collect(**other, inbox, 100, kUnknownRank);
  EXPECT_EQ(inbox.packets, 100u);
  EXPECT_EQ(here_->statistics().local_path, 100u);
}

TEST_F(XdpPortTest, neighbour__that_is_forgotten_is_found_again) {
  connect();
  exchange(0, 10, 100);
  run_command("ip neigh flush dev va");
  for (std::uint32_t round = 0; round < 5; ++round) {
    here_->wait(monotonic_now(), monotonic_now() + 10ms);
    exchange(0, 10, 100);
  }
  EXPECT_FALSE(here_->failure());
}

TEST_F(XdpPortTest, mac__that_changes_is_followed) {
  connect();
  exchange(0, 10, 100);
  far_->run("ip link set vb address 02:00:00:00:00:77");
  run_command("ip neigh replace 10.8.0.2 lladdr 02:00:00:00:00:77 dev va");
  std::uint64_t fast = 0;
  for (const Time end = monotonic_now() + kPatience; fast == 0 && monotonic_now() < end;) {
    for (Port* port : {here_.get(), there_.get()}) {
      port->receive(monotonic_now());
      port->wait(monotonic_now(), monotonic_now() + 10ms);
    }
    const PortStatistics before = there_->statistics();
    Inbox inbox;
    send(*here_, 1, 0, 10, 100, [] {});
    collect(*there_, inbox, 10, 0, 50ms);
    const PortStatistics after = there_->statistics();
    fast = after.rx_packets - before.rx_packets - (after.slow_path - before.slow_path);
  }
  EXPECT_EQ(fast, 10u);
  exchange(0, 100, 1408);
  EXPECT_FALSE(there_->failure());
}

TEST_F(XdpPortTest, publish__data_of_closed_operations_dies_in_the_driver) {
  connect();
  there_->publish(0, 7);
  send(
      *here_, 1, 1000, 50, 100, [] {}, 6);
  Inbox inbox;
  send(
      *here_, 1, 0, 50, 100, [] {}, 7);
  collect(*there_, inbox, 50, 0);
  EXPECT_EQ(inbox.packets, 50u);
  EXPECT_EQ(inbox.seen.count(1000), 0u);
  const Inside inside(*far_);
  const auto program = xdp::Program::find(::if_nametoindex("vb"));
  ASSERT_TRUE(program) << program.error().message;
  const auto verdicts = program->maps().verdicts();
  ASSERT_TRUE(verdicts);
  EXPECT_EQ((*verdicts)[TARPON_VERDICT_CLOSED], 50u);
  const auto late = program->maps().late(0);
  ASSERT_TRUE(late);
  EXPECT_EQ((*late)[0], 50u);
}

TEST_F(XdpPortTest, interface__that_goes_down_is_a_failure_that_names_it) {
  connect();
  exchange(0, 10, 100);
  run_command("ip link set va down");
  const Time end = monotonic_now() + kPatience;
  while (!here_->failure() && monotonic_now() < end) {
    here_->wait(monotonic_now(), monotonic_now() + 50ms);
  }
  ASSERT_TRUE(here_->failure());
  EXPECT_THAT(here_->failure()->message, HasSubstr("va is down"));
}

TEST_F(XdpPortTest, carrier__that_goes_and_comes_back_is_loss_of_packets) {
  connect();
  exchange(0, 10, 100);
  there_.reset();
  far_->run("ip link set vb down");
  for (std::uint32_t i = 0; i < 30; ++i) {
    send(*here_, 1, i, 1, 100, [] {});
    here_->receive(monotonic_now());
    here_->wait(monotonic_now(), monotonic_now() + 10ms);
    ASSERT_FALSE(here_->failure()) << here_->failure()->message;
  }
  far_->run("ip link set vb up");
  {
    const Inside inside(*far_);
    auto socket = UdpSocket::open({.address = kThere, .port = ntohs(peers_[1].sin_port)});
    ASSERT_TRUE(socket) << socket.error().message;
    there_ = open(std::move(*socket), ::if_nametoindex("vb"), 0);
  }
  // The kernel finds the neighbour again; meanwhile packets may be lost.
  Inbox inbox;
  const Time end = monotonic_now() + kPatience;
  while (inbox.packets == 0 && monotonic_now() < end) {
    here_->wait(monotonic_now(), monotonic_now() + 10ms);
    send(*here_, 1, 0, 1, 100, [&] { inbox.take(there_->receive(monotonic_now()), 0); });
  }
  EXPECT_GT(inbox.packets, 0u);
  EXPECT_FALSE(here_->failure());
}

TEST_F(XdpPortTest, carrier__is_waited_for_at_the_start) {
  connect();
  here_.reset();
  there_.reset();
  far_->run("ip link set vb down");
  std::thread cable([&] {
    ::usleep(100'000);
    far_->run("ip link set vb up");
  });
  auto socket = UdpSocket::open({.address = kHere});
  ASSERT_TRUE(socket) << socket.error().message;
  here_ = open(std::move(*socket), pair_->a(), 0);
  cable.join();
  EXPECT_FALSE(here_->failure());
}

TEST_F(XdpPortTest, interface__whose_mtu_shrinks_is_a_failure_that_says_so) {
  connect();
  exchange(0, 10, 100);
  run_command("ip link set va mtu 1400");
  const Time end = monotonic_now() + kPatience;
  while (!here_->failure() && monotonic_now() < end) {
    here_->wait(monotonic_now(), monotonic_now() + 50ms);
  }
  ASSERT_TRUE(here_->failure());
  EXPECT_THAT(here_->failure()->message, HasSubstr("MTU of va is 1400"));
}

TEST_F(XdpPortTest, program__that_somebody_detaches_costs_speed_alone) {
  connect();
  exchange(0, 10, 100);
  {
    const Inside inside(*far_);
    auto program = xdp::Program::find(::if_nametoindex("vb"));
    ASSERT_TRUE(program) << program.error().message;
    ASSERT_EQ(::bpf_link_detach(program->link_fd()), 0);
  }
  exchange(0, 100, 1408);
  EXPECT_EQ(there_->statistics().slow_path, 100u);
}

TEST_F(XdpPortTest, transmit_frames__come_back_when_nobody_receives) {
  connect();
  std::size_t sent = 0;
  const Time end = monotonic_now() + kPatience;
  while (sent < 20'000 && monotonic_now() < end) {
    const auto frames = here_->transmit_frames(64);
    for (TxPacket& packet : frames) prepare(packet, 1, 0, 1408);
    here_->transmit(frames);
    sent += frames.size();
    if (frames.empty()) here_->wait(monotonic_now(), monotonic_now() + 10ms);
  }
  EXPECT_GE(sent, 20'000u);
  EXPECT_GT(there_->statistics().rx_overruns, 0u);
  EXPECT_FALSE(here_->failure());
  Inbox inbox;  // what fitted is whole, and the port works on
  const Time later = monotonic_now();
  for (auto batch = there_->receive(later); !batch.empty(); batch = there_->receive(later)) {
    inbox.take(batch, 0);
  }
  EXPECT_GT(inbox.packets, 1000u);
  exchange(0, 100, 1408);
}

TEST_F(XdpPortTest, wake__ends_a_wait_from_another_thread) {
  connect();
  std::thread waker([&] { here_->wake(); });
  const Time start = monotonic_now();
  here_->wait(start, start + kPatience);
  waker.join();
  EXPECT_LT(monotonic_now() - start, kPatience);
}

TEST_F(XdpPortTest, queues__that_are_taken_are_refused_by_name) {
  connect();
  const auto taken = XdpQueues::open(
      {.interface = pair_->a(), .queues = {0}, .job = kJob, .max_payload = payload_});
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message, HasSubstr("queue 0 of va: another AF_XDP socket has it"));
}

}  // namespace
}  // namespace tarpon::xdp_port_test
