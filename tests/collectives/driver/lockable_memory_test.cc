// Jobs of a user who may lock little memory (RLIMIT_MEMLOCK), as on RHEL 8 and 9. The ranks are
// processes of a user of their own, since the kernel counts by user.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "tests/support/forked_child.h"
#include "tests/support/sanitized.h"
#include "tools/job/process_group.h"
#include "transport/ports/uring/uring_port.h"

namespace tarpon::lockable_memory_test {
namespace {

using testing::HasSubstr;
using testing_support::in_forked_child;

/// Limits this process for good: gives up root, and with it CAP_IPC_LOCK. False: that failed.
bool limit_memory(rlim_t kilobytes) {
  const rlimit limit{kilobytes << 10, kilobytes << 10};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  return ::geteuid() != 0 || ::setuid(0x5a000000u + static_cast<uid_t>(::getppid())) == 0;
}

/// Whether this machine has io_uring, and counts its memory against the limit.
bool limit_matters() {
  return in_forked_child([] {
           if (!check_uring() || !limit_memory(0)) return 1;
           return check_uring() ? 1 : 0;
         }) == 0;
}

int failed(Rank rank, const std::string& why) {
  std::fprintf(stderr, "rank %u: %s\n", rank, why.c_str());
  return 1;
}

/// Makes blocking calls from several threads, one tag each.
int call_from_threads(Rank rank, Communicator& job, std::uint32_t ranks) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint32_t tag = 0; tag < 4; ++tag) {
    threads.emplace_back([&, tag] {
      for (int call = 0; call < 5; ++call) {
        std::vector<float> values(20'000, static_cast<float>(rank));
        const auto report = job.allreduce({.input = values.data(),
                                           .output = values.data(),
                                           .count = values.size(),
                                           .tag = tag,
                                           .deadline = 60s});
        const bool good = report && report->status == Status::complete &&
                          values.back() == static_cast<float>(ranks * (ranks - 1) / 2);
        if (good) continue;
        ++wrong;
        failed(rank, report ? report->detail : report.error().message);
        return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

struct Wish {
  rlim_t kilobytes = 64;
  std::uint32_t ranks = 2;
  Datapath datapath = Datapath::automatic;
  std::string expected{};  // part of a reason that some rank gives
};

int run_rank(Rank rank, const std::string& file, const Wish& wish) {
  if (!limit_memory(wish.kilobytes)) return failed(rank, "could not be limited");
  auto options = CommunicatorOptions::for_rank(rank, wish.ranks, "file://" + file);
  options.rendezvous.timeout = 60s;
  options.datapath = wish.datapath;
  auto job = Communicator::connect(options);
  if (!job) return failed(rank, job.error().message);
  bool said = wish.expected.empty();
  for (const RankInfo& info : (*job)->ranks()) {
    said |=
        info.datapath == "mmsg" && info.datapath_reason.find(wish.expected) != std::string::npos;
    if (info.datapath == "mmsg" && info.datapath_reason.find("usable") != std::string::npos) {
      return failed(rank, "contradicts itself: " + info.datapath_reason);
    }
  }
  if (!said) return failed(rank, "no rank says " + wish.expected);
  if (const int wrong = call_from_threads(rank, **job, wish.ranks); wrong != 0) return wrong;
  const auto closed = (*job)->close(60s);
  return closed ? 0 : failed(rank, closed.error().message);
}

/// A file that ranks without privileges may make: in a directory of everybody.
std::string meeting_file() {
  static int next = 0;
  return "/tmp/tarpon-memory-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
}

void expect_runs(const Wish& wish) {
  const std::string file = meeting_file();
  const auto ended =
      run_process_group(wish.ranks, [&](Rank rank) { return run_rank(rank, file, wish); });
  ::unlink(file.c_str());
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_TRUE(ended->ok()) << ended->summary();
}

class LockableMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!limit_matters()) GTEST_SKIP() << "io_uring is not there, or locks no memory";
  }
};

TEST_F(LockableMemoryTest, check_uring__asks_for_all_rings_of_a_port) {
  for (const rlim_t kilobytes : {8u, 32u}) {  // no ring, and one
    EXPECT_EQ(in_forked_child([&] {
                if (!limit_memory(kilobytes)) return 1;
                const auto usable = check_uring();
                if (usable) return 2;
                EXPECT_THAT(usable.error().message,
                            HasSubstr("RLIMIT_MEMLOCK is " + std::to_string(kilobytes) + " KiB"));
                EXPECT_THAT(usable.error().message, HasSubstr("ulimit -l"));
                EXPECT_THAT(usable.error().message, HasSubstr("--datapath mmsg"));
                EXPECT_THAT(usable.error().message, HasSubstr("TARPON_DATAPATH=mmsg"));
                return HasFailure() ? 3 : 0;
              }),
              0);
  }
}

TEST_F(LockableMemoryTest, automatic__takes_mmsg_where_no_ring_fits) {
  expect_runs({.kilobytes = 16, .expected = "RLIMIT_MEMLOCK is 16 KiB"});
}

TEST_F(LockableMemoryTest, automatic__threads_that_get_no_ring_go_on_without) {
  expect_runs({.kilobytes = 112});  // two rings for each of two ranks, for one thread of five none
}

TEST_F(LockableMemoryTest, automatic__ranks_that_race_for_the_rest_all_run) {
  const std::uint32_t ranks = testing_support::kSanitizer ? 4 : 8;
  for (const rlim_t kilobytes : {64u, 128u, 256u}) {
    const rlim_t too_few = kilobytes * ranks / 8;  // for as many ranks
    expect_runs({.kilobytes = too_few, .ranks = ranks, .expected = "RLIMIT_MEMLOCK"});
  }
}

TEST_F(LockableMemoryTest, uring__that_was_asked_for_is_refused) {
  const std::string file = meeting_file();
  const Wish wish{.kilobytes = 16, .datapath = Datapath::uring};
  std::string said;
  ProcessGroupOptions options;
  options.on_error_line = [&](std::string_view line, bool) { said += std::string(line) + "\n"; };
  const auto ended = run_process_group(
      2, [&](Rank rank) { return run_rank(rank, file, wish); }, options);
  ::unlink(file.c_str());
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_FALSE(ended->ok());
  EXPECT_THAT(said, HasSubstr("RLIMIT_MEMLOCK is 16 KiB"));
}

}  // namespace
}  // namespace tarpon::lockable_memory_test
