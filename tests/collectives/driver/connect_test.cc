// Ranks that cannot connect: every rank hears at once, and is told the cause. Ports of a range.
#include "collectives/driver/connect.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <thread>

#include "tests/support/membership_job.h"
#include "tests/support/rendezvous_job.h"
#include "tests/support/sanitized.h"
#include "tools/job/process_group.h"
#include "tools/system/process_usage.h"
#include "transport/clock.h"

namespace tarpon::connect_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// The bound of a wait is far below this timeout, and far above what a loaded machine needs.
constexpr Duration kTimeout = 200s;
constexpr Duration kAtOnce = 40s;

/// What the rank processes of a job report.
struct Ending {
  std::array<char, 600> text{};  // of connect()'s error; empty: it has succeeded
  Duration took{};
  std::atomic<bool> starts = false;
};

class Endings {
 public:
  static constexpr std::size_t kRanks = 3;

  Endings() {
    void* const place = ::mmap(nullptr, kRanks * sizeof(Ending), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      all_[rank] = new (static_cast<Ending*>(place) + rank) Ending();
    }
  }
  Endings(const Endings&) = delete;
  Endings& operator=(const Endings&) = delete;
  ~Endings() { ::munmap(all_[0], kRanks * sizeof(Ending)); }

  Ending& operator[](Rank rank) const { return *all_[rank]; }
  std::string text(Rank rank) const { return all_[rank]->text.data(); }

 private:
  std::array<Ending*, kRanks> all_{};
};

/// Runs connect_ranks() as processes. `limit(rank)` runs in each before it connects.
void connect_all(const Endings& endings, const std::function<void(Rank)>& limit) {
  const std::string address = testing_support::free_address();
  ProcessGroupOptions group;
  group.grace = kTimeout;
  const auto ended = run_process_group(
      Endings::kRanks,
      [&](Rank rank) {
        auto options = CommunicatorOptions::for_rank(rank, Endings::kRanks, address);
        options.rendezvous.timeout = kTimeout;
        options.datapath = Datapath::mmsg;
        limit(rank);
        endings[rank].starts = true;
        // Ranks that come after rank 0 has failed cannot know of it.
        for (Rank other = 1; rank == 0 && other < Endings::kRanks; ++other) {
          while (!endings[other].starts) ::usleep(1000);
        }
        const Time start = monotonic_now();
        const auto connection = connect_ranks(options);
        endings[rank].took = monotonic_now() - start;
        if (!connection) connection.error().message.copy(endings[rank].text.data(), 599);
        return 0;
      },
      group);
  ASSERT_TRUE(ended && ended->ok());
}

void set_limit(__rlimit_resource_t resource, std::size_t value) {
  const rlimit limit{value, value};
  if (::setrlimit(resource, &limit) != 0) ::_exit(9);
}

/// Rank 0 may open ever more files: fewer than it needs at any step, and at last enough.
TEST(ConnectTest, descriptors__a_rank_that_lacks_one_ends_all_ranks_at_once) {
  if (testing_support::kSanitizer && !testing_support::kThreadSanitizer) {
    GTEST_SKIP() << "UndefinedBehaviorSanitizer opens a pipe to look at an object's type";
  }
  bool connected = false;
  std::set<std::string> texts;
  for (std::size_t more = 4; more < 64 && !connected; ++more) {
    const Endings endings;
    connect_all(endings, [&](Rank rank) {
      if (rank != 0) return;
      set_limit(RLIMIT_NOFILE,
                static_cast<std::size_t>(ProcessHoldings::read().descriptors) + more);
    });
    connected = endings.text(0).empty();
    for (Rank rank = 0; rank < Endings::kRanks; ++rank) {
      SCOPED_TRACE(fmt::format("{} more descriptors, rank {}: {}", more, rank, endings.text(rank)));
      EXPECT_LT(endings[rank].took, kAtOnce);
      EXPECT_EQ(endings.text(rank), endings.text(0));
      if (!connected) {
        EXPECT_THAT(endings.text(rank), AllOf(StartsWith("rank 0: "), HasSubstr("ulimit -n")));
      }
    }
    texts.insert(endings.text(0));
  }
  EXPECT_TRUE(connected);
  EXPECT_GT(texts.size(), 2u) << "the limit is met at several steps";
}

TEST(ConnectTest, threads__a_rank_that_may_start_none_ends_all_ranks_at_once) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const Endings endings;
  connect_all(endings, [&](Rank rank) {
    if (rank != 1) return;
    set_limit(RLIMIT_NPROC, 1);
    if (::setuid(65'531) != 0) ::_exit(9);
  });
  for (Rank rank = 0; rank < Endings::kRanks; ++rank) {
    EXPECT_LT(endings[rank].took, kAtOnce);
    EXPECT_THAT(
        endings.text(rank),
        AllOf(StartsWith("rank 1: cannot start 2 threads: Resource temporarily unavailable"),
              HasSubstr("may have 1 processes and threads: raise `ulimit -u`"),
              HasSubstr("pids.max")));
  }
}

// -- ports

CommunicatorOptions in_range(CommunicatorOptions options, const PortRange& ports) {
  options.ports = ports;
  return options;
}

/// All ports of `ranks` lie in `range`, and no two of them are the same.
void expect_inside(const std::vector<RankInfo>& ranks, const PortRange& range) {
  std::set<std::uint16_t> udp, tcp;
  std::size_t flows = 0;
  for (const RankInfo& rank : ranks) {
    udp.insert(rank.port);
    udp.insert(rank.flow_ports.begin(), rank.flow_ports.end());
    flows += 1 + rank.flow_ports.size();
    tcp.insert(rank.control_port);
  }
  EXPECT_EQ(udp.size(), flows);
  EXPECT_EQ(tcp.size(), ranks.size());
  for (const auto* const ports : {&udp, &tcp}) {
    EXPECT_GE(*ports->begin(), range.first);
    EXPECT_LE(*ports->rbegin(), range.last);
  }
}

TEST(ConnectTest, ports__ranks_of_a_host_share_a_range) {
  const PortRange range{24'100, 24'163};
  const auto ranks = testing_support::connect(
      3, Datapath::mmsg, [&](CommunicatorOptions& options) { options = in_range(options, range); });
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank);
    expect_inside(rank->ranks(), range);
  }
  EXPECT_EQ(ranks[0]->ranks()[0].flow_ports.size(), 3u);
}

TEST(ConnectTest, ports__an_exhausted_range_is_named_on_all_ranks) {
  const std::string address = testing_support::free_address();
  std::array<std::string, 2> texts;
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto options = in_range(CommunicatorOptions::for_rank(rank, 2, address), {24'199, 24'199});
      options.rendezvous.timeout = kTimeout;
      const auto connection = connect_ranks(options);
      if (!connection) texts[rank] = connection.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_THAT(texts[0], AllOf(HasSubstr(" port of 24199-24199 is free"), HasSubstr("4 UDP ports"),
                              HasSubstr("--ports")));
}

}  // namespace
}  // namespace tarpon::connect_test
