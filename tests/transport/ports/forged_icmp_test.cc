// What a stranger's ICMP does to a pair of live UDP ports: nothing. Two namespaces, a veth between.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>

#include "tests/support/port_traffic.h"
#include "tests/support/private_network.h"

namespace tarpon::forged_icmp_test {
namespace {

using namespace test;
using namespace testing_support;

constexpr const char* kNear = "10.8.0.1";
constexpr const char* kFar = "10.8.0.2";
constexpr std::uint32_t kRun = 440;  // ten full trains

struct IcmpKind {
  std::uint8_t type;
  std::uint8_t code;
  std::uint16_t mtu = 0;
};

std::uint16_t checksum(const void* data, std::size_t bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes; i += 2) {
    std::uint16_t word = 0;
    std::memcpy(&word, static_cast<const char*>(data) + i, 2);
    sum += word;
  }
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

/// An ICMP error about a datagram from `from` to `to`: 56 bytes with its IP header.
struct IcmpError {
  icmphdr icmp{};
  iphdr ip{};
  udphdr udp{};

  IcmpError(const IcmpKind& kind, const sockaddr_in& from, const sockaddr_in& to) {
    icmp.type = kind.type;
    icmp.code = kind.code;
    if (kind.type == ICMP_REDIRECT) {
      icmp.un.gateway = inet_addr("10.8.0.77");
    } else {
      icmp.un.frag.mtu = htons(kind.mtu);
    }
    ip.version = 4;
    ip.ihl = 5;
    ip.tot_len = htons(1500);
    ip.frag_off = htons(0x4000);
    ip.ttl = 64;
    ip.protocol = IPPROTO_UDP;
    ip.saddr = from.sin_addr.s_addr;
    ip.daddr = to.sin_addr.s_addr;
    ip.check = checksum(&ip, sizeof ip);
    udp.source = from.sin_port;
    udp.dest = to.sin_port;
    udp.len = htons(1480);
    icmp.checksum = checksum(this, sizeof *this);
  }
};
static_assert(sizeof(IcmpError) == 36);

/// Rank 0 near, rank 1 far, where the stranger is too.
class ForgedIcmpTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_PRIVATE_NETWORK();
    const auto usable = check_uring();
    if (!usable && std::string(GetParam().name) == "uring") GTEST_SKIP() << usable.error().message;
    far_.emplace();
    pair_.emplace();
    far_->take("vb");
    far_->run("ip address add 10.8.0.2/24 dev vb");
    far_->run("ip link set vb up");
    run_command("ip address add 10.8.0.1/24 dev va");
    const Inside inside(*far_);
    stranger_ = FileDescriptor(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
    ASSERT_TRUE(stranger_) << std::strerror(errno);
  }

  void TearDown() override {
    near_port_.reset();
    far_port_.reset();
    pair_.reset();
  }

  void open_ports(std::uint32_t gso_segments) {
    near_port_.reset();
    far_port_.reset();
    UdpSocket near = open_socket({.address = kNear});
    std::optional<UdpSocket> far;
    {
      const Inside inside(*far_);
      far.emplace(open_socket({.address = kFar}));
    }
    peers_ = {near.local(), far->local()};
    const UdpPortOptions options{.gso_segments = gso_segments, .job = kTestJob};
    near_port_ = GetParam().make(std::move(near), peers_, options, {}).value();
    far_port_ = GetParam().make(std::move(*far), peers_, options, {}).value();
  }

  void forge(const IcmpKind& kind) {
    const IcmpError error(kind, peers_[0], peers_[1]);
    ASSERT_EQ(::sendto(stranger_.get(), &error, sizeof error, 0,
                       reinterpret_cast<const sockaddr*>(&peers_[0]), sizeof peers_[0]),
              static_cast<ssize_t>(sizeof error));
  }

  /// Full packets pass, in as many sends as ever.
  void expect_to_work(std::uint64_t most_units) {
    const PortStatistics before = near_port_->statistics();
    send(*near_port_, run_of(kRun, 1408, 1));
    drain(*near_port_);
    Inbox inbox;
    // Nothing dropped by the sender is waited for.
    collect(*far_port_, inbox, near_port_->statistics().tx_packets - before.tx_packets);
    EXPECT_TRUE(each_once(inbox, kRun));
    const PortStatistics after = near_port_->statistics();
    EXPECT_EQ(after.tx_dropped - before.tx_dropped, 0u);
    EXPECT_LE(after.tx_units - before.tx_units, most_units);
    EXPECT_FALSE(near_port_->failure());
  }

  /// While the ports run, then for a new pair of ports: the kernel remembers the MTU of a path.
  void expect_immunity(const IcmpKind& kind) {
    SCOPED_TRACE(testing::Message() << "type " << int{kind.type} << ", code " << int{kind.code}
                                    << ", mtu " << kind.mtu);
    for (const std::uint32_t segments : {44u, 1u}) {
      const std::uint64_t units = segments == 1 ? kRun : kRun / segments + 2;
      open_ports(segments);
      expect_to_work(units);
      forge(kind);
      expect_to_work(units);
      open_ports(segments);
      expect_to_work(units);
    }
  }

  std::optional<FarNamespace> far_;
  std::optional<VethPair> pair_;
  FileDescriptor stranger_;
  std::vector<sockaddr_in> peers_;
  std::unique_ptr<Port> near_port_;
  std::unique_ptr<Port> far_port_;
};

TEST_P(ForgedIcmpTest, fragmentation_needed_stops_nothing) {
  for (const std::uint16_t mtu :
       std::initializer_list<std::uint16_t>{576, 0, 68, 552, 1280, 1499}) {
    expect_immunity({ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED, mtu});
  }
}

TEST_P(ForgedIcmpTest, other_errors_stop_nothing) {
  for (std::uint8_t code = 0; code <= 15; ++code) {
    if (code != ICMP_FRAG_NEEDED) expect_immunity({ICMP_DEST_UNREACH, code});
  }
  expect_immunity({ICMP_SOURCE_QUENCH, 0});
  for (std::uint8_t code = 0; code <= 3; ++code) expect_immunity({ICMP_REDIRECT, code});
  for (std::uint8_t code = 0; code <= 1; ++code) expect_immunity({ICMP_TIME_EXCEEDED, code});
  expect_immunity({ICMP_PARAMETERPROB, 0});
}

INSTANTIATE_TEST_SUITE_P(live, ForgedIcmpTest,
                         testing::Values(Kind{"mmsg", &make_mmsg_port},
                                         Kind{"uring", &make_uring_port}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tarpon::forged_icmp_test
