// The parts of the UDP ports: io_uring that is forbidden, sockets, address table, flows, batches.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>
#include <thread>

#include "tests/support/port_traffic.h"
#include "transport/clock.h"
#include "transport/ports/rx_batch.h"
#include "transport/ports/udp_group.h"
#include "transport/ports/udp_train.h"

namespace tarpon::udp_parts_test {
namespace {

using namespace test;

// What a container's default profile does to io_uring, for this thread alone. False: no seccomp.
bool forbid_io_uring(std::uint32_t error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = std::size(filter), .filter = filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(UringPortTest, forbidden_io_uring_is_unavailable_and_says_why) {
  for (const int error : {EPERM, ENOSYS}) {
    bool forbidden = false;
    Error refusal;
    std::thread([&] {
      forbidden = forbid_io_uring(static_cast<std::uint32_t>(error));
      UdpSocket socket = open_socket();
      const std::vector<sockaddr_in> peers = {socket.local()};
      auto port = make_uring_port(std::move(socket), peers);
      if (!port) refusal = port.error();
    }).join();
    if (!forbidden) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(refusal.code, Error::Code::unavailable);
    EXPECT_EQ(refusal.system_errno, error);
    // A host that forbids io_uring by its sysctl as well names that one.
    EXPECT_THAT(refusal.message, testing::AnyOf(testing::HasSubstr("seccomp"),
                                                testing::HasSubstr("kernel.io_uring_disabled")));
    EXPECT_NE(refusal.message.find("mmsg"), std::string::npos);
  }
}

TEST(UringPortTest, datagrams_that_are_not_merged_seldom_exhaust_the_buffers) {
  if (const auto usable = check_uring(); !usable) GTEST_SKIP() << usable.error().message;
  UdpSocket from = open_socket();
  UdpSocket to = open_socket();
  const int off = 0;
  ASSERT_EQ(::setsockopt(to.fd(), IPPROTO_UDP, UDP_GRO, &off, sizeof off), 0);
  const std::vector<sockaddr_in> peers = {from.local(), to.local()};
  auto sender = make_uring_port(std::move(from), peers).value();
  auto receiver = make_uring_port(std::move(to), peers).value();
  constexpr std::uint32_t kCount = 2000;
  send(*sender, run_of(kCount, 1408, 1));
  drain(*sender);
  Inbox inbox;
  collect(*receiver, inbox, kCount);
  EXPECT_TRUE(each_once(inbox, kCount));
  EXPECT_EQ(receiver->statistics().rx_units, kCount);
  EXPECT_LE(receiver->statistics().rx_stalls, kCount / 25);  // with 8 buffers: 250
}

TEST(UdpSocketTest, errors_name_the_thing_and_the_remedy) {
  const auto bad = UdpSocket::open({.address = "nowhere"});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, Error::Code::invalid_argument);
  EXPECT_EQ(bad.error().message, "address 'nowhere': give an IPv4 address such as 10.0.0.1");
  const UdpSocket first = open_socket();
  const auto second = UdpSocket::open({.port = first.port()});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Error::Code::invalid_argument);
  EXPECT_NE(second.error().message.find("the port is in use"), std::string::npos);
  const auto absent = UdpSocket::open({.address = "192.0.2.1"});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, Error::Code::unavailable);
}

TEST(UdpSocketTest, budget_follows_the_buffer) {
  EXPECT_EQ(open_socket({.receive_buffer = 100'000}).receive_budget(), 100'000u);
  EXPECT_GE(open_socket().receive_budget(), 100'000u);
}

TEST(UdpOptionsTest, payload_for_mtu) {
  EXPECT_EQ(max_payload_for_mtu(1500), 1408u);
  EXPECT_EQ(max_payload_for_mtu(9000), 8896u);
  EXPECT_EQ(max_payload_for_mtu(65536), 65408u);
  EXPECT_EQ(max_payload_for_mtu(155), 0u);
  EXPECT_EQ(max_payload_for_mtu(68), 0u);
  EXPECT_EQ(gso_burst({.max_payload = 8832}), 7u);
  EXPECT_EQ(gso_burst({.max_payload = 64}), 64u);
  EXPECT_EQ(gso_burst({.max_payload = 65408}), 1u);
}

TEST(AddressTableTest, finds_every_peer_and_nobody_else) {
  std::vector<sockaddr_in> peers;
  for (std::uint16_t i = 0; i < 200; ++i) {
    peers.push_back(*ipv4_address("10.0." + std::to_string(i / 16) + ".1",
                                  static_cast<std::uint16_t>(4000 + i % 16)));
  }
  AddressTable table(peers);
  for (Rank rank = 0; rank < 200; ++rank) EXPECT_EQ(table.rank_of(peers[rank]), rank);
  EXPECT_EQ(table.rank_of(*ipv4_address("10.0.0.1", 3999)), kUnknownRank);
  EXPECT_EQ(table.rank_of(*ipv4_address("10.1.0.1", 4000)), kUnknownRank);
  EXPECT_EQ(table.rank_of(peers[3]), 3);
}

TEST(AddressTableTest, knows_further_addresses_of_a_peer) {
  const std::vector<sockaddr_in> peers = {*ipv4_address("10.0.0.1", 4000),
                                          *ipv4_address("10.0.0.2", 4000)};
  const std::vector<FlowSource> others = {{*ipv4_address("10.0.0.1", 4001), 0},
                                          {*ipv4_address("10.0.0.2", 4001), 1},
                                          {*ipv4_address("10.0.0.1", 4000), 1}};
  AddressTable table(peers, others);
  EXPECT_EQ(table.rank_of(peers[0]), 0);
  EXPECT_EQ(table.rank_of(peers[1]), 1);
  EXPECT_EQ(table.rank_of(others[0].address), 0);
  EXPECT_EQ(table.rank_of(others[1].address), 1);
  EXPECT_EQ(table.rank_of(*ipv4_address("10.0.0.1", 4002)), kUnknownRank);
}

TEST(UdpFlowsTest, what_cannot_be_had_is_named) {
  const auto none = open_flows("192.0.2.1", 4);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, testing::StartsWith("flow 2 of 4: UDP 192.0.2.1:0: "));
  EXPECT_TRUE(open_flows("192.0.2.1", 1));
}

TEST(RxBatchTest, unit_with_too_many_pieces_is_cut_off) {
  RxBatch batch({});
  const std::vector<std::byte> data(1000);
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  const cmsghdr header = {
      .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_GRO};
  const int segment = 3;
  std::memcpy(control, &header, sizeof header);
  std::memcpy(control + CMSG_LEN(0), &segment, sizeof segment);
  batch.add({.data = data.data(),
             .bytes = data.size(),
             .from = {},
             .control = control,
             .control_bytes = sizeof control});
  EXPECT_EQ(batch.packets().size(), RxBatch::kLargestUnit);
  PortStatistics statistics;
  batch.count(statistics);
  EXPECT_EQ(statistics.rx_packets, RxBatch::kLargestUnit);
  EXPECT_EQ(statistics.rx_overruns, 334u - RxBatch::kLargestUnit);
}

TEST(UdpGroupTest, address__is_private_and_not_one_that_switches_flood) {
  std::set<std::uint32_t> seen;
  for (std::uint32_t id = 0; id < 2000; ++id) {
    const sockaddr_in group = group_address(id, 4711);
    const std::uint32_t address = ntohl(group.sin_addr.s_addr);
    EXPECT_EQ(address >> 24, 239u);
    EXPECT_NE(address >> 16 & 0x7f, 0u);
    EXPECT_EQ(ntohs(group.sin_port), 4711);
    seen.insert(address);
  }
  EXPECT_GT(seen.size(), 1990u);
}

TEST(UdpGroupTest, join__takes_packets_of_the_job_and_no_others) {
  constexpr std::uint32_t kJob = 0x1234567;
  const UdpSocket sender = open_socket();
  const sockaddr_in address = group_address(7, sender.port());
  const auto group = join_group(sender, address, kJob);
  ASSERT_TRUE(group) << group.error().message;
  tarpon_header header{};
  header.magic = TARPON_MAGIC;
  header.version = TARPON_WIRE_VERSION;
  for (const std::uint32_t job : {kJob + 1, kJob}) {
    header.job = job;
    ASSERT_EQ(::sendto(sender.fd(), &header, sizeof header, 0,
                       reinterpret_cast<const sockaddr*>(&address), sizeof address),
              static_cast<ssize_t>(sizeof header));
  }
  pollfd ready{.fd = group->socket.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&ready, 1, 10'000), 1);
  tarpon_header got{};
  ASSERT_EQ(::recv(group->socket.get(), &got, sizeof got, 0), static_cast<ssize_t>(sizeof got));
  EXPECT_EQ(got.job, kJob);
  EXPECT_LT(::recv(group->socket.get(), &got, sizeof got, 0), 0) << "nothing else";
}

}  // namespace
}  // namespace tarpon::udp_parts_test
