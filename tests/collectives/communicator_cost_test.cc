// What live jobs on 127.0.0.1 cost: processor time while they wait, memory, descriptors.
#include "collectives/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/each_datapath.h"
#include "tests/support/live_job.h"
#include "tests/support/sanitized.h"
#include "tools/system/process_usage.h"
#include "transport/clock.h"

namespace tarpon::communicator_cost_test {
namespace {

using namespace testing_support;

TEST_P(CommunicatorTest, poll__sleeps_when_there_is_nothing_to_do) {
  const Ranks ranks =
      connect(2, GetParam(), [](CommunicatorOptions& options) { options.progress_thread = false; });
  ASSERT_EQ(ranks.size(), 2u);
  const double before = process_cpu_seconds();
  const Time end = monotonic_now() + 400ms;
  std::uint64_t polls = 0;
  for (; monotonic_now() < end; ++polls) ranks[0]->poll(50ms);
  EXPECT_LT(process_cpu_seconds() - before, 0.2) << polls << " polls";
}

TEST_P(CommunicatorTest, idle__the_progress_threads_use_no_processor_time) {
  const Ranks ranks = connect(4, GetParam());
  ASSERT_EQ(ranks.size(), 4u);
  on_all(4, [&](Rank rank) {
    auto values = input(rank, 100);
    expect_complete(ranks[rank]->allreduce(in_place(values)));
  });
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(1s);
  const double used = process_cpu_seconds() - before;
  EXPECT_LT(used, 0.2) << "of 4 idle ranks";
  std::printf("4 idle ranks: %.1f ms of processor time in 1 s\n", used * 1e3);
}

TEST_P(CommunicatorTest, wait__a_blocked_call_uses_little_processor_time) {
  const Ranks ranks = connect(2, GetParam());
  ASSERT_EQ(ranks.size(), 2u);
  auto values = input(0, 1000);
  auto arguments = in_place(values);
  arguments.deadline = 1s;
  const double before = process_cpu_seconds();
  const auto report = ranks[0]->allreduce(arguments);  // rank 1 never comes
  EXPECT_LT(process_cpu_seconds() - before, 0.3);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->status, Status::peer_late);
  EXPECT_THAT(report->late_ranks, testing::ElementsAre(1));
  EXPECT_GE(report->elapsed, 1s);
}

TEST_P(CommunicatorTest, destroy__an_idle_one_costs_little_time) {
  Ranks ranks = connect(4, GetParam());
  ASSERT_EQ(ranks.size(), 4u);
  on_all(4, [&](Rank rank) {
    auto values = input(rank, 100);
    expect_complete(ranks[rank]->allreduce(in_place(values)));
    EXPECT_TRUE(ranks[rank]->close(20s));
  });
  const Time start = monotonic_now();
  ranks.clear();
  const auto took = static_cast<long long>((monotonic_now() - start) / 1ms);
  std::printf("4 communicators destroyed in %lld ms\n", took);
}

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

std::size_t descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

/// Every two ranks share a connection, and here all ends of them are in one process.
bool may_open(rlim_t files) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(limit.rlim_max, std::max(limit.rlim_cur, files));
  setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur >= files;
}

TEST_P(CommunicatorTest, scale__64_ranks_reduce_a_mebibyte) {
  if (!may_open(6000)) GTEST_SKIP() << "needs 6000 open files: raise the hard limit (ulimit -Hn)";
  // The thread sanitizer makes 64 ranks on two cores take minutes.
  constexpr std::uint32_t kRanks = testing_support::kThreadSanitizer ? 16 : 64;
  constexpr std::size_t kCount = (1 << 20) / sizeof(float);
  const std::size_t descriptors_before = descriptors();
  const std::uint64_t resident_before = resident_bytes();
  const Time start = monotonic_now();
  const Ranks ranks = connect(kRanks, GetParam());
  ASSERT_EQ(ranks.size(), kRanks);
  const Time connected = monotonic_now();
  const auto expected = sum(kRanks, kCount);
  on_all(kRanks, [&](Rank rank) {
    auto values = input(rank, kCount);
    auto arguments = in_place(values);
    arguments.deadline = 60s;
    expect_complete(ranks[rank]->allreduce(arguments));
    EXPECT_EQ(values, expected);
  });
  std::printf("%u ranks: start-up %lld ms, 1 MiB %lld ms, %zu descriptors, %.1f MiB resident\n",
              kRanks, static_cast<long long>((connected - start) / 1ms),
              static_cast<long long>((monotonic_now() - connected) / 1ms),
              descriptors() - descriptors_before,
              static_cast<double>(resident_bytes() - resident_before) / (1 << 20));
  on_all(kRanks, [&](Rank rank) { EXPECT_TRUE(ranks[rank]->close(60s)); });
}

}  // namespace
}  // namespace tarpon::communicator_cost_test
