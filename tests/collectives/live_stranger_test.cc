// A stranger on the path of a live job with a secret: reads what goes over the loopback interface
// of a network namespace, and sends packets made of that with the addresses of ranks. Results stay
// right, no rank's endpoint sees any of it, and only the counters of the ports move.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <tuple>
#include <vector>

#include "collectives/rendezvous/control.h"
#include "tests/support/live_job.h"
#include "tests/support/private_network.h"
#include "tests/support/secrets.h"
#include "tools/simulation/stranger.h"
#include "transport/clock.h"
#include "transport/counters.h"
#include "transport/ports/uring/uring_port.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::live_stranger_test {
namespace {

using namespace testing_support;

constexpr Rank kRanks = 3;
constexpr std::size_t kCount = 20'000;
constexpr std::uint8_t kOwnTtl = 63;  // marks the stranger's own packets

/// UDP packets on the loopback interface.
class Path {
 public:
  Path()
      : reader_(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP))),
        writer_(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW)) {
    EXPECT_GE(reader_.get(), 0);
    EXPECT_GE(writer_.get(), 0);
    sockaddr_ll at{};
    at.sll_family = AF_PACKET;
    at.sll_protocol = htons(ETH_P_IP);
    at.sll_ifindex = static_cast<int>(::if_nametoindex("lo"));
    EXPECT_EQ(::bind(reader_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    const timeval patience{.tv_sec = 0, .tv_usec = 10'000};
    EXPECT_EQ(::setsockopt(reader_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    const int bytes = 8 << 20;
    EXPECT_EQ(::setsockopt(reader_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes), 0);
  }

  /// The packets of one datagram: with segmentation offload several. Ports as on the wire. Empty:
  /// none has come, or it is the stranger's own.
  struct Seen {
    std::uint16_t from = 0, to = 0;
    std::vector<std::span<const std::byte>> packets = {};
  };
  Seen read() {
    sockaddr_ll at{};
    socklen_t length = sizeof at;
    const ssize_t got = ::recvfrom(reader_.get(), bytes_.data(), bytes_.size(), 0,
                                   reinterpret_cast<sockaddr*>(&at), &length);
    Seen seen;
    ip header{};
    if (got < static_cast<ssize_t>(sizeof header + sizeof(udphdr))) return seen;
    std::memcpy(&header, bytes_.data(), sizeof header);
    const bool own = header.ip_ttl == kOwnTtl || at.sll_pkttype == PACKET_OUTGOING;
    if (header.ip_p != IPPROTO_UDP || own) return seen;
    udphdr udp{};
    const std::size_t at_udp = std::size_t{header.ip_hl} * 4;
    std::memcpy(&udp, bytes_.data() + at_udp, sizeof udp);
    seen.from = ntohs(udp.source);
    seen.to = ntohs(udp.dest);
    std::span<const std::byte> rest(bytes_.data(), static_cast<std::size_t>(got));
    rest = rest.subspan(at_udp + sizeof udp);
    tarpon_header first{};
    if (rest.size() < sizeof first) return seen;
    std::memcpy(&first, rest.data(), sizeof first);
    const std::size_t step = sizeof first + first.length + TARPON_TAG_BYTES;
    if (first.magic != TARPON_MAGIC) return seen;
    for (; !rest.empty(); rest = rest.subspan(std::min(step, rest.size()))) {
      seen.packets.push_back(rest.first(std::min(step, rest.size())));
    }
    return seen;
  }

  void write(std::uint16_t from, std::uint16_t to, std::span<const std::byte> packet) {
    std::vector<std::byte> bytes(sizeof(ip) + sizeof(udphdr));
    ip header{};
    header.ip_v = 4;
    header.ip_hl = sizeof header / 4;
    header.ip_len = htons(static_cast<std::uint16_t>(bytes.size() + packet.size()));
    header.ip_ttl = kOwnTtl;
    header.ip_p = IPPROTO_UDP;
    header.ip_src.s_addr = header.ip_dst.s_addr = htonl(INADDR_LOOPBACK);
    udphdr udp{};
    udp.source = htons(from);
    udp.dest = htons(to);
    udp.len = htons(static_cast<std::uint16_t>(sizeof udp + packet.size()));
    std::memcpy(bytes.data(), &header, sizeof header);
    std::memcpy(bytes.data() + sizeof header, &udp, sizeof udp);
    bytes.insert(bytes.end(), packet.begin(), packet.end());
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    static_cast<void>(::sendto(writer_.get(), bytes.data(), bytes.size(), 0,
                               reinterpret_cast<const sockaddr*>(&address), sizeof address));
  }

 private:
  FileDescriptor reader_, writer_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(70'000);
};

std::vector<std::uint16_t> ports_of(const Communicator& job) {
  std::vector<std::uint16_t> ports;
  for (const RankInfo& info : job.ranks()) ports.push_back(info.port);
  return ports;
}

/// Acts on a third of the job's packets, until it is destroyed.
class LiveStranger {
 public:
  explicit LiveStranger(std::vector<std::uint16_t> ports)
      : ports_(std::move(ports)), thread_([this] { run(); }) {}
  ~LiveStranger() { stop(); }

  void stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  /// Packets that it has sent. REQUIRES: stop() was called.
  std::uint64_t sent() const { return sent_; }
  /// Sends recorded packets to the ports of another job. Every second packet gets that job's
  /// cookie. Returns the number of those. REQUIRES: stop() was called.
  std::uint64_t replay(const std::vector<std::uint16_t>& ports, std::uint32_t cookie) {
    std::uint64_t with_cookie = 0;
    for (int i = 0; i < 1000; ++i) {
      const StrangerPacket* const one = stranger_.recall();
      if (one == nullptr) return 0;
      std::vector<std::byte> bytes = one->bytes;
      if (i % 2 == 0) {
        std::memcpy(bytes.data() + offsetof(tarpon_header, job), &cookie, sizeof cookie);
        ++with_cookie;
      }
      path_.write(ports[one->from], ports[one->to], bytes);
    }
    return with_cookie;
  }

 private:
  void run() {
    while (!over_) {
      const Path::Seen seen = path_.read();
      const Rank from = rank_of(seen.from), to = rank_of(seen.to);
      if (from == kUnknownRank || to == kUnknownRank) continue;
      for (const std::span<const std::byte> packet : seen.packets) {
        const StrangerPacket* const one = stranger_.read(from, to, packet);
        if (one == nullptr) continue;
        path_.write(ports_[one->from], ports_[one->to], one->bytes);
        ++sent_;
      }
    }
  }
  Rank rank_of(std::uint16_t port) const {
    for (Rank rank = 0; rank < ports_.size(); ++rank) {
      if (ports_[rank] == port) return rank;
    }
    return kUnknownRank;
  }

  const std::vector<std::uint16_t> ports_;
  Path path_;
  Stranger stranger_{1, 0.33, kRanks};
  std::uint64_t sent_ = 0;
  std::atomic<bool> over_ = false;
  std::thread thread_;  // last: it uses the others
};

class LiveStrangerTest : public testing::TestWithParam<std::tuple<Datapath, bool>> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_PRIVATE_NETWORK();
    run_command("ip link set lo up");
    if (std::get<0>(GetParam()) != Datapath::uring) return;
    if (const auto uring = check_uring(); !uring) GTEST_SKIP() << uring.error().message;
  }

  static void expect_sums(const Ranks& job, std::uint32_t calls) {
    on_all(kRanks, [&](Rank rank) {
      for (std::uint32_t call = 0; call < calls; ++call) {
        auto values = input(rank, kCount, call);
        AllreduceArguments arguments = in_place(values);
        arguments.algorithm = Algorithm::tar;  // packets, not memory that the ranks share
        expect_complete(job[rank]->allreduce(arguments));
        EXPECT_EQ(values, sum(kRanks, kCount, call));
      }
    });
  }

  /// What the endpoints of the ranks dropped, but for repairs that came twice or late, and for data
  /// of ranks that are far ahead.
  static void expect_no_drops(const Ranks& job) {
    for (const auto& rank : job) {
      const EndpointCounters counters = rank->counters();
      for (std::size_t i = 0; i < counters.dropped.size(); ++i) {
        const auto reason = static_cast<DropReason>(i);
        if (reason == DropReason::duplicate || reason == DropReason::closed ||
            reason == DropReason::early_overrun) {
          continue;
        }
        EXPECT_EQ(counters[reason], 0u) << drop_reason_name(reason);
      }
    }
  }

  static PortStatistics counted(const Ranks& job) {
    PortStatistics result;
    for (const auto& rank : job) {
      const PortStatistics one = rank->port_statistics();
      result.rx_forged += one.rx_forged;
      result.rx_replayed += one.rx_replayed;
      result.rx_refused += one.rx_refused;
    }
    return result;
  }
};

TEST_P(LiveStrangerTest, packets_of_the_stranger__move_counters_alone__also_in_the_successor) {
  Ranks job = connect(kRanks, std::get<0>(GetParam()), [](CommunicatorOptions& options) {
    options.rendezvous.secret = secret();
    if (std::get<1>(GetParam())) options.integrity = TARPON_INTEGRITY_SEALED;
    options.flows = 1;
    options.mtu = 1500;
  });
  ASSERT_EQ(job.size(), kRanks);
  LiveStranger stranger(ports_of(*job[0]));
  expect_sums(job, 20);
  stranger.stop();
  ASSERT_GT(stranger.sent(), 200u);
  const PortStatistics first = counted(job);
  EXPECT_GT(first.rx_forged, stranger.sent() / 10) << "some still wait in the sockets";
  EXPECT_GT(first.rx_replayed, 0u);
  EXPECT_LE(first.rx_forged + first.rx_replayed + first.rx_refused, stranger.sent());
  expect_no_drops(job);

  Ranks fresh(kRanks);
  on_all(kRanks, [&](Rank rank) {
    auto made = job[rank]->rejoin(20s);
    ASSERT_TRUE(made) << made.error().message;
    fresh[rank] = std::move(*made);
  });
  ASSERT_FALSE(HasFailure());
  job.clear();
  std::uint64_t with_cookie = 0;
  std::thread replays([&] {
    const std::uint32_t cookie = fresh[0]->control().job();
    with_cookie = stranger.replay(ports_of(*fresh[0]), cookie);
  });
  expect_sums(fresh, 10);
  replays.join();
  EXPECT_GE(with_cookie, 500u);
  const Time end = monotonic_now() + 20s;
  while (counted(fresh).rx_forged < with_cookie / 2 && monotonic_now() < end) {
    std::this_thread::sleep_for(10ms);
  }
  expect_sums(fresh, 1);
  const PortStatistics second = counted(fresh);
  EXPECT_GE(second.rx_forged + second.rx_replayed, with_cookie / 2) << "sockets may drop some";
  EXPECT_GT(second.rx_refused, 0u) << "by their cookies";
  expect_no_drops(fresh);
}

INSTANTIATE_TEST_SUITE_P(Datapaths, LiveStrangerTest,
                         testing::Combine(testing::Values(Datapath::mmsg, Datapath::uring),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_sealed" : "_keyed");
                         });

}  // namespace
}  // namespace tarpon::live_stranger_test
