// A stranger on the network sends every class of hostile packets at a running job, and hostile TCP
// connections to its rendezvous and its control mesh: the results stay right, and each class of
// packets is counted where it should be. On every data path, without a secret and with one, which
// ends the classes too that change what a rank without a secret does.
//
// TARPON_HOSTILE_COUNT=25000 sends that many of each class in place of 200.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <tuple>

#include "collectives/communicator.h"
#include "collectives/rendezvous/control.h"
#include "tests/hostile/hostile_frames.h"
#include "tests/support/hostile_guests.h"
#include "tests/support/secrets.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/namespaces/testbed.h"
#include "transport/clock.h"
#include "transport/counters.h"
#include "transport/endpoint.h"
#include "transport/integrity.h"
#include "transport/ports/udp_socket.h"
#include "transport/ports/uring/uring_port.h"

namespace tarpon::hostile {
namespace {

using testing::IsEmpty;

constexpr std::uint32_t kRanks = 2;
constexpr Rank kStranger = kRanks;  // its host
constexpr std::size_t kElements = 50'000;
constexpr double kPerSecond = 10'000;
constexpr Duration kPatience = 20s;
constexpr std::uint16_t kPort = 29500;  // of the rendezvous
constexpr std::size_t kVisits = 100;    // to each door
constexpr Duration kPause = 5ms;        // between two visits to a mesh door

std::uint64_t count_per_class() {
  const char* const text = std::getenv("TARPON_HOSTILE_COUNT");
  return text == nullptr ? 200 : std::strtoull(text, nullptr, 10);
}

void on_all(const std::function<void(Rank)>& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kRanks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

/// Counts the guests that rank 0 refuses.
class Refusals final : public RendezvousObserver {
 public:
  void on_refusal(const std::string&) override { ++count; }
  void on_wait(const std::string&, bool) override {}
  std::size_t count = 0;
};

struct Outcome {
  std::map<std::string, std::uint64_t> sent;  // by counter
  std::uint64_t packets = 0;
};

class HostileJobTest : public testing::TestWithParam<std::tuple<Datapath, tarpon_integrity>> {
 protected:
  Datapath datapath() const { return std::get<0>(GetParam()); }
  tarpon_integrity integrity() const { return std::get<1>(GetParam()); }
  bool has_secret() const { return needs_secret(integrity()); }

  void SetUp() override {
    const auto probe = make_network_namespaces(1);
    if (!probe) GTEST_SKIP() << probe.error().message;
    if (datapath() == Datapath::uring) {
      if (const auto usable = check_uring(); !usable) GTEST_SKIP() << usable.error().message;
    }
    TestbedOptions options;
    options.ranks = kRanks + 1;
    auto made = Testbed::create(options);
    ASSERT_TRUE(made) << made.error().message;
    network_.emplace(std::move(*made));
    connect();
  }

  void TearDown() override { ranks_.clear(); }

  /// Beside strangers that come to the rendezvous before rank 1.
  void connect() {
    ranks_.resize(kRanks);
    Refusals refusals;
    Guests guests;
    std::atomic<bool> visited = false;
    std::thread stranger([&] {
      visit_rendezvous(guests);
      visited = true;
    });
    on_all([&](Rank rank) {
      ASSERT_TRUE(network_->enter(rank));
      while (rank != 0 && !visited) std::this_thread::sleep_for(1ms);
      CommunicatorOptions options;
      options.rendezvous.rank = rank;
      options.rendezvous.world_size = kRanks;
      options.rendezvous.address = "tcp://" + network_->address(0) + ":" + std::to_string(kPort);
      if (rank == 0) options.rendezvous.observer = &refusals;
      options.datapath = datapath();
      options.integrity = integrity();
      if (has_secret()) options.rendezvous.secret = testing_support::secret();
      options.address = network_->address(rank);
      options.interface = network_->interface();
      options.mtu = 1500;
      auto communicator = Communicator::connect(options);
      ASSERT_TRUE(communicator) << communicator.error().message;
      ranks_[rank] = std::move(*communicator);
    });
    stranger.join();
    EXPECT_THAT(guests.wait_closed(monotonic_now() + kPatience), IsEmpty());
    // Without the proof of TLS all guests are alike.
    EXPECT_EQ(refusals.count, has_secret() ? 1 : kRefusedSpeeches);
  }

  /// From the stranger's host, once rank 0 listens.
  void visit_rendezvous(Guests& guests) {
    ASSERT_TRUE(network_->enter(kStranger));
    const auto door = ipv4_address(network_->address(0), kPort);
    ASSERT_TRUE(door) << door.error().message;
    const std::vector<Speech> speeches = rendezvous_speeches();
    const Time end = monotonic_now() + kPatience;
    for (std::size_t i = 0; i < kVisits;) {
      const auto visited = guests.visit(*door, speeches[i % speeches.size()], end);
      if (visited) {
        ++i;
      } else {
        ASSERT_TRUE(i == 0 && monotonic_now() < end) << visited.error().message;
        std::this_thread::sleep_for(1ms);
      }
    }
  }

  /// From the stranger's host. The ranks close every connection, and answer none.
  void visit_mesh(std::uint32_t job) {
    ASSERT_TRUE(network_->enter(kStranger));
    Guests guests;
    for (std::size_t i = 0; i < kVisits; ++i) {
      for (Rank rank = 0; rank < kRanks; ++rank) {
        const RankInfo& info = ranks_[0]->ranks()[rank];
        const auto door = ipv4_address(info.address, info.control_port);
        ASSERT_TRUE(door) << door.error().message;
        const std::vector<Speech> speeches = mesh_speeches(job, rank);
        const auto visited =
            guests.visit(*door, speeches[i % speeches.size()], monotonic_now() + kPatience);
        ASSERT_TRUE(visited) << visited.error().message;
      }
      std::this_thread::sleep_for(kPause);
    }
    EXPECT_THAT(guests.wait_closed(monotonic_now() + kPatience), IsEmpty());
    EXPECT_THAT(guests.answered(), IsEmpty());
  }

  /// At rank 0, in the name of rank 1.
  Target target() {
    Target result;
    result.interface = network_->interface();
    const auto read_mac = [&]() -> Result<void> {
      const FileDescriptor fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      ifreq request{};
      result.interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
      if (::ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0) return fail_system(errno, "MAC");
      std::memcpy(result.mac.data(), request.ifr_hwaddr.sa_data, result.mac.size());
      return {};
    };
    const auto read = in_network_namespace(network_->network_namespace(0), read_mac);
    EXPECT_TRUE(read) << read.error().message;
    const auto& infos = ranks_[0]->ranks();
    result.address = *ipv4_address(infos[0].address, infos[0].port);
    result.spoofed = *ipv4_address(infos[1].address, infos[1].port);
    result.job = ranks_[0]->control().job();
    result.integrity = ranks_[0]->integrity();
    return result;
  }

  /// From the stranger's host: packets, and connections to the mesh. Sets `done` at the end.
  Outcome attack(const Target& to, std::atomic<bool>& done) {
    Outcome result;
    std::thread guests([&] { visit_mesh(to.job); });
    std::thread([&] {
      ASSERT_TRUE(network_->enter(kStranger));
      auto sender = HostileSender::open(to);
      ASSERT_TRUE(sender) << sender.error().message;
      Random random(20261122);
      for (const HostileClass& one : classes()) {
        if (one.group == Group::stateful && !has_secret()) continue;
        const std::uint64_t sent = sender->send(one, count_per_class(), kPerSecond, random);
        EXPECT_EQ(sent, count_per_class()) << one.name;
        result.sent[std::string(one.counter)] += sent;
        result.packets += sent;
      }
    }).join();
    guests.join();
    done = true;
    return result;
  }

  /// Calls until rank 0 sees `done`, which it tells the others by the last element. Every sum is
  /// checked. Returns how many calls.
  int reduce_until(const std::atomic<bool>& done) {
    std::atomic<int> calls = 0;
    on_all([&](Rank rank) {
      std::vector<float> values(kElements);
      for (bool over = false; !over;) {
        for (std::size_t i = 0; i < kElements; ++i) {
          values[i] = static_cast<float>((i + rank * 13u) % 101);
        }
        values.back() = rank == 0 && done ? 1.0f : 0.0f;
        AllreduceArguments arguments;
        arguments.input = arguments.output = values.data();
        arguments.count = kElements;
        arguments.deadline = kPatience;
        const auto report = ranks_[rank]->allreduce(arguments);
        ASSERT_TRUE(report) << report.error().message;
        ASSERT_EQ(report->status, Status::complete) << report->detail;
        over = values.back() != 0.0f;
        for (std::size_t i = 0; i + 1 < kElements; ++i) {
          ASSERT_EQ(values[i], static_cast<float>(i % 101 + (i + 13u) % 101)) << i;
        }
        if (rank == 0) ++calls;
      }
    });
    return calls;
  }

  /// Packets that ended at rank 0: at its socket, for want of a tag, or at its endpoint.
  std::uint64_t dropped() {
    const PortStatistics port = ranks_[0]->port_statistics();
    std::uint64_t sum = port.rx_refused + port.rx_forged + port.rx_replayed;
    for (const std::uint64_t count : ranks_[0]->counters().dropped) sum += count;
    return sum;
  }

  std::optional<Testbed> network_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

TEST_P(HostileJobTest, every_class_is_counted_and_no_result_is_wrong) {
  std::atomic<bool> done = false;
  Outcome outcome;
  const Target to = target();
  std::thread stranger([&] { outcome = attack(to, done); });
  const int calls = reduce_until(done);
  stranger.join();
  EXPECT_GT(calls, 10);
  const std::uint64_t expected = outcome.packets - outcome.sent[std::string(kByKernel)];
  // AF_XDP: the program drops DATA of closed operations.
  const std::uint64_t at_least =
      expected - (datapath() == Datapath::xdp ? outcome.sent[std::string(kUndefined)] : 0);
  // The last ones may still wait in the socket.
  const Time end = monotonic_now() + kPatience;
  while (dropped() < at_least && monotonic_now() < end) {
    std::this_thread::sleep_for(10ms);
  }
  const EndpointCounters counters = ranks_[0]->counters();
  for (std::size_t i = 0; i < counters.dropped.size(); ++i) {
    const auto reason = static_cast<DropReason>(i);
    // Repairs on a busy machine may come twice, or late.
    if (reason == DropReason::duplicate || reason == DropReason::closed) continue;
    const std::uint64_t sent = outcome.sent[std::string(drop_reason_name(reason))];
    EXPECT_EQ(counters[reason], has_secret() ? 0 : sent) << drop_reason_name(reason);
  }
  if (has_secret()) {
    EXPECT_GE(dropped(), at_least);
    const PortStatistics port = ranks_[0]->port_statistics();
    EXPECT_LE(port.rx_refused + port.rx_forged + port.rx_replayed, outcome.packets);
    EXPECT_GT(port.rx_forged, 0u);
  } else {
    EXPECT_EQ(ranks_[0]->port_statistics().rx_refused, outcome.sent[std::string(kRefused)]);
  }
  EXPECT_EQ(ranks_[1]->port_statistics().rx_refused, 0u);
  std::printf("%d calls beside %llu hostile packets\n", calls,
              static_cast<unsigned long long>(outcome.packets));
  on_all([&](Rank rank) {
    // A verdict goes over the mesh: its connections work, and nobody is excluded.
    const StepVerdict verdict = ranks_[rank]->agree(1, {}, kPatience);
    EXPECT_EQ(verdict.verdict, Verdict::apply) << verdict.detail;
    EXPECT_EQ(verdict.reporters, 0b11u);
    const auto closed = ranks_[rank]->close(kPatience);
    EXPECT_TRUE(closed) << closed.error().message;
  });
}

std::string name_of(const testing::TestParamInfo<std::tuple<Datapath, tarpon_integrity>>& test) {
  return fmt::format("{}_{}", name(std::get<0>(test.param)), name(std::get<1>(test.param)));
}

INSTANTIATE_TEST_SUITE_P(
    Datapaths, HostileJobTest,
    testing::Combine(testing::Values(Datapath::mmsg, Datapath::uring, Datapath::xdp),
                     testing::Values(TARPON_INTEGRITY_UDP, TARPON_INTEGRITY_KEYED,
                                     TARPON_INTEGRITY_SEALED)),
    name_of);

}  // namespace
}  // namespace tarpon::hostile
