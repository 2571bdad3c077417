// Ranks as processes: how they end, what is reported, and that nothing of them is left.
#include "tools/job/process_group.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "tools/job/line_merger.h"
#include "tools/system/signal_queue.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::process_group_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// Ends far later than any test waits; a test that reaches it fails by its time limit.
void sleep_forever() {
  for (;;) ::pause();
}

/// Memory that parent and children share.
template <typename T>
class Shared {
 public:
  Shared()
      : at_(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    new (at_) T();
  }
  Shared(const Shared&) = delete;
  ~Shared() { ::munmap(at_, sizeof(T)); }
  T& operator*() const { return *static_cast<T*>(at_); }
  T* operator->() const { return static_cast<T*>(at_); }

 private:
  void* at_;
};

struct Collected {
  ProcessGroupOptions options;
  std::vector<std::string> lines;

  Collected() {
    options.on_error_line = [this](std::string_view line, bool) { lines.emplace_back(line); };
  }
};

bool no_children_left() {
  return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
}

TEST(ProcessGroup, run__all_end_well) {
  const Shared<std::array<std::atomic<int>, 4>> seen;
  const auto result = run_process_group(4, [&](Rank rank) {
    (*seen)[rank] = rank + 1;
    return 0;
  });
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->ok());
  EXPECT_EQ(result->summary(), "all ranks ended well");
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ((*seen)[static_cast<std::size_t>(rank)], rank + 1);
  EXPECT_TRUE(no_children_left());
}

/// The first descriptors of a rank are those of its pipe, the last one watches its process.
TEST(ProcessGroup, run__no_descriptor_is_left_names_the_limit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const int left : {2, 4}) {  // one is for the signals
    const FileDescriptor lowest(::fcntl(0, F_DUPFD_CLOEXEC, 0));
    rlimit limit = before;
    limit.rlim_cur = static_cast<rlim_t>(lowest.get() + left);
    Collected collected;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    const auto result = run_process_group(
        1, [](Rank) { return 0; }, collected.options);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_FALSE(result) << left;
    EXPECT_THAT(result.error().message, HasSubstr("raise `ulimit -n`")) << left;
  }
}

TEST(ProcessGroup, run__exit_code_and_exception) {
  Collected collected;
  const auto result = run_process_group(
      3,
      [](Rank rank) -> int {
        if (rank == 1) throw std::runtime_error("broken");
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->ok());
  EXPECT_EQ(result->summary(), "rank 1 exited with code 1");
  EXPECT_EQ(result->ranks[1].exit_code, 1);
  EXPECT_THAT(collected.lines, ElementsAre("rank 1: broken"));
}

TEST(ProcessGroup, run__all_ranks_with_the_same_exit_code_are_named) {
  Collected collected;
  collected.options.grace = 60s;  // far more than the test takes
  const auto result = run_process_group(
      4, [](Rank rank) { return rank == 1 ? 0 : 1; }, collected.options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->summary(), "ranks 0, 2-3 exited with code 1");
}

TEST(ProcessGroup, run__killed_rank_is_named) {
  Collected collected;
  const auto result = run_process_group(
      4,
      [](Rank rank) {
        if (rank == 2) ::raise(SIGKILL);
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->first_failure, Rank{2});
  EXPECT_EQ(result->summary(), "rank 2 was killed by signal 9 (Killed)");
  EXPECT_EQ(result->ranks[2].signal, SIGKILL);
  EXPECT_EQ(result->ranks[2].exit_code, -1);
}

TEST(ProcessGroup, run__killed_rank_is_named_also_after_others_that_failed_by_it) {
  Collected collected;
  collected.options.grace = 60s;  // far more than the test takes
  const Shared<std::atomic<pid_t>> failed;
  const auto result = run_process_group(
      2,
      [&](Rank rank) {
        if (rank == 0) {
          *failed = ::getpid();
          return 1;
        }
        while (*failed == 0 || ::kill(*failed, 0) == 0) ::usleep(1000);  // until it is reaped
        ::raise(SIGKILL);
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->first_failure, Rank{1});
}

TEST(ProcessGroup, run__others_may_end_by_themselves_within_the_grace) {
  Collected collected;
  collected.options.grace = 60s;  // far more than the test takes
  const Shared<std::atomic<pid_t>> failed;
  const auto result = run_process_group(
      2,
      [&](Rank rank) {
        if (rank == 0) {
          *failed = ::getpid();
          return 3;
        }
        // Ends after rank 0 has, by itself: that process exists until its parent has reaped it.
        while (*failed == 0 || ::kill(*failed, 0) == 0) ::usleep(1000);
        return 4;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->first_failure, Rank{0});
  EXPECT_EQ(result->ranks[0].exit_code, 3);
  EXPECT_EQ(result->ranks[1].exit_code, 4);
  EXPECT_FALSE(result->ranks[1].ended_by_group);
}

TEST(ProcessGroup, run__others_are_ended_after_the_grace) {
  Collected collected;
  collected.options.grace = 10ms;
  const auto result = run_process_group(
      3,
      [](Rank rank) {
        if (rank == 1) return 7;
        sleep_forever();
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->summary(), "rank 1 exited with code 7");
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_EQ(result->ranks[rank].signal, SIGTERM);
    EXPECT_TRUE(result->ranks[rank].ended_by_group);
  }
  EXPECT_TRUE(no_children_left());
}

TEST(ProcessGroup, run__lost_status_is_a_failure) {
  Collected collected;
  collected.options.grace = 10ms;
  // From the first line on, the kernel keeps no status of a child that ends.
  const Shared<std::atomic<bool>> ignored;
  collected.options.on_error_line = [&](std::string_view, bool) {
    std::signal(SIGCHLD, SIG_IGN);
    *ignored = true;
  };
  const auto result = run_process_group(
      2,
      [&](Rank rank) {
        if (rank == 1) sleep_forever();
        std::fprintf(stderr, "a line\n");
        while (!*ignored) ::usleep(1000);
        return 0;
      },
      collected.options);
  std::signal(SIGCHLD, SIG_DFL);
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->ok());
  EXPECT_EQ(result->first_failure, Rank{0});
  EXPECT_THAT(result->summary(), HasSubstr("rank 0 ended, and its exit code was lost"));
  EXPECT_TRUE(no_children_left());
}

TEST(ProcessGroup, run__who_ignores_sigterm_is_killed) {
  Collected collected;
  collected.options.grace = 0ms;
  collected.options.kill_after = 20ms;
  const Shared<std::atomic<int>> ready;
  const auto result = run_process_group(
      3,
      [&](Rank rank) {
        if (rank == 0) {
          while (*ready < 2) ::usleep(1000);
          return 1;
        }
        if (rank == 1) std::signal(SIGTERM, SIG_IGN);
        ++*ready;
        if (rank == 2) ::raise(SIGSTOP);  // a stopped process does not see SIGTERM
        sleep_forever();
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->first_failure, Rank{0});
  EXPECT_EQ(result->ranks[1].signal, SIGKILL);
  EXPECT_EQ(result->ranks[2].signal, SIGKILL);
  EXPECT_THAT(collected.lines, ElementsAre("ranks 1-2 did not end and were killed"));
  EXPECT_TRUE(no_children_left());
}

TEST(ProcessGroup, run__lines_wait_no_longer_than_the_grace) {
  Collected collected;
  collected.options.grace = 1s;  // as long as a line waits anyway
  collected.options.kill_after = 3600s;
  const Shared<std::atomic<pid_t>> stopped;
  const auto collect = collected.options.on_error_line;
  collected.options.on_error_line = [&](std::string_view line, bool is_error) {
    collect(line, is_error);
    ::kill(*stopped, SIGKILL);  // without this line the test hangs
  };
  const auto result = run_process_group(
      2,
      [&](Rank rank) {
        if (rank == 1) {
          *stopped = ::getpid();
          ::raise(SIGSTOP);
        }
        while (*stopped == 0) ::usleep(1000);
        std::fprintf(stderr, "tarpon: no answer\n");
        return 1;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_THAT(collected.lines, ElementsAre("rank 0: no answer"));
}

TEST(ProcessGroup, run__last_words_after_a_signal) {
  const pid_t parent = ::getpid();
  Collected collected;
  collected.options.kill_after = 3600s;  // not after a signal
  collected.options.last_words = 20ms;
  const auto result = run_process_group(
      1,
      [&](Rank) {
        std::signal(SIGINT, SIG_IGN);
        ::kill(parent, SIGINT);
        sleep_forever();
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->ranks[0].signal, SIGKILL);
  EXPECT_THAT(collected.lines, ElementsAre("rank 0 did not end and was killed"));
}

TEST(ProcessGroup, run__signals_of_the_parent_are_passed_on) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t parent = ::getpid();
    const Shared<std::atomic<int>> ready;
    Collected collected;
    const auto result = run_process_group(
        2,
        [&](Rank rank) {
          ++*ready;
          if (rank == 0) {
            while (*ready < 2) ::usleep(1000);
            ::kill(parent, signal);
          }
          sleep_forever();
          return 0;
        },
        collected.options);
    ASSERT_TRUE(result);
    EXPECT_FALSE(result->ok());
    EXPECT_EQ(result->interrupted_by, signal);
    EXPECT_FALSE(result->first_failure);
    EXPECT_EQ(result->ranks[0].signal, signal);
    EXPECT_EQ(result->ranks[1].signal, signal);
    EXPECT_THAT(result->summary(), ::testing::StartsWith("interrupted by signal"));
    EXPECT_TRUE(no_children_left());
  }
}

TEST(ProcessGroup, run__second_signal_kills_at_once) {
  const pid_t parent = ::getpid();
  Collected collected;
  collected.options.last_words = 3600s;
  const auto result = run_process_group(
      1,
      [&](Rank) {
        static volatile sig_atomic_t asked = 0;
        std::signal(SIGINT, [](int) { asked = 1; });
        ::kill(parent, SIGINT);
        while (asked == 0) ::usleep(1000);  // the first has been passed on
        std::this_thread::sleep_for(kSameRequest);
        ::kill(parent, SIGINT);
        sleep_forever();
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->ranks[0].signal, SIGKILL);
  EXPECT_THAT(collected.lines, IsEmpty());  // the user knows
}

TEST(ProcessGroup, run__identical_lines_appear_once_with_their_ranks) {
  Collected collected;
  const auto result = run_process_group(
      4,
      [](Rank rank) {
        std::fprintf(stderr, "no route to 10.0.0.1\nrank %u: own\n", static_cast<unsigned>(rank));
        std::fprintf(stderr, "no newline at the end");
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_THAT(
      collected.lines,
      UnorderedElementsAre("ranks 0-3: no route to 10.0.0.1", "rank 0: own", "rank 1: own",
                           "rank 2: own", "rank 3: own", "ranks 0-3: no newline at the end"));
}

TEST(ProcessGroup, run__much_text_is_neither_lost_nor_blocks) {
  Collected collected;
  constexpr int kLines = 20000;  // far more than a pipe holds
  const auto result = run_process_group(
      2,
      [](Rank rank) {
        for (int i = 0; i < kLines; ++i)
          std::fprintf(stderr, "%u %d\n", static_cast<unsigned>(rank), i);
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_EQ(collected.lines.size(), 2u * kLines);
}

TEST(ProcessGroup, run__what_ranks_leave_behind_is_killed) {
  const pid_t stranger = ::fork();  // ours from before
  if (stranger == 0) sleep_forever();
  Collected collected;
  struct Pids {
    std::atomic<pid_t> child{0}, grandchild{0};
  };
  const Shared<Pids> left;
  const auto result = run_process_group(
      1,
      [&](Rank) {
        if (const pid_t pid = ::fork(); pid == 0) {
          const pid_t below = ::fork();
          if (below == 0) ::setpgid(0, 0);
          if (below != 0) left->grandchild = below;
          sleep_forever();
        } else {
          left->child = pid;
        }
        while (left->grandchild == 0) ::usleep(1000);
        std::fprintf(stderr, "bye\n");  // they have the pipe too
        return 0;
      },
      collected.options);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->ok());
  EXPECT_THAT(collected.lines, ElementsAre("bye"));
  for (const pid_t pid : {left->child.load(), left->grandchild.load()}) {
    EXPECT_EQ(::kill(pid, 0), -1) << "still there";
    EXPECT_EQ(errno, ESRCH);
  }
  EXPECT_EQ(::kill(stranger, 0), 0);
  ::kill(stranger, SIGKILL);
  EXPECT_EQ(::waitpid(stranger, nullptr, 0), stranger);
  int subreaper = -1;
  ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  EXPECT_EQ(subreaper, 0) << "as it was";
}

TEST(ProcessGroup, run__buffered_output_of_the_parent_is_not_repeated) {
  ::testing::internal::CaptureStdout();
  std::printf("once");
  const auto result = run_process_group(3, [](Rank) { return 0; });
  EXPECT_TRUE(result);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "once");
}

TEST(ProcessGroup, run__children_die_with_a_killed_parent) {
  struct Pids {
    std::atomic<int> ready{0};
    std::array<std::atomic<pid_t>, 3> pids{};
  };
  const Shared<Pids> shared;
  const pid_t parent = ::fork();
  if (parent == 0) {
    const auto ignored = run_process_group(3, [&](Rank rank) {
      shared->pids[rank] = ::getpid();
      ++shared->ready;
      sleep_forever();
      return 0;
    });
    ::_exit(ignored ? 0 : 1);
  }
  while (shared->ready < 3) ::usleep(1000);
  std::vector<pollfd> ends;
  std::vector<FileDescriptor> owners;
  for (const auto& pid : shared->pids) {
    owners.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pid.load(), 0)));
    ASSERT_TRUE(owners.back());
    ends.push_back({owners.back().get(), POLLIN, 0});
  }
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  for (pollfd& end : ends) EXPECT_EQ(::poll(&end, 1, 10000), 1);
}

/// Collects what a merger passes on; errors of the tool end in " (error)".
struct Merged {
  std::vector<std::string> lines;
  LineMerger merger;

  explicit Merged(std::uint32_t ranks)
      : merger(ranks, [this](std::string_view line, bool is_error) {
          lines.push_back(std::string(line) + (is_error ? " (error)" : ""));
        }) {}
};

constexpr Time kStart{1s};

TEST(LineMerger, add__nth_time_of_a_line_appears_once_with_its_ranks) {
  Merged merged(3);
  LineMerger& merger = merged.merger;
  merger.add(0, "a\na\nb", kStart);
  merger.add(1, "a\n", kStart);
  EXPECT_THAT(merged.lines, IsEmpty());
  merger.add(2, "a\na\nc\n", kStart);
  EXPECT_THAT(merged.lines, ElementsAre("ranks 0-2: a"));
  merger.add(0, "d\n", kStart);
  for (Rank rank = 0; rank < 3; ++rank) merger.finish(rank, kStart);
  EXPECT_THAT(merged.lines,
              ElementsAre("ranks 0-2: a", "ranks 0, 2: a", "rank 2: c", "rank 0: bd"));
}

TEST(LineMerger, release__a_line_waits_a_second_for_other_ranks) {
  Merged merged(3);
  EXPECT_EQ(merged.merger.due(), kNever);
  merged.merger.add(1, "slow\n", kStart);
  EXPECT_EQ(merged.merger.due(), kStart + 1s);
  merged.merger.release(kStart + 999ms);
  EXPECT_THAT(merged.lines, IsEmpty());
  merged.merger.release(kStart + 1s);
  EXPECT_THAT(merged.lines, ElementsAre("rank 1: slow"));
}

TEST(LineMerger, hold__lines_wait_for_every_rank_that_still_speaks) {
  Merged merged(3);
  merged.merger.hold();
  merged.merger.add(1, "tarpon: gone\n", kStart);
  EXPECT_EQ(merged.merger.due(), kNever);
  merged.merger.release(kStart + 1h);
  merged.merger.finish(1, kStart + 1h);
  merged.merger.add(0, "tarpon: gone\n", kStart + 1h);
  EXPECT_THAT(merged.lines, IsEmpty());
  merged.merger.finish(2, kStart + 1h);
  EXPECT_THAT(merged.lines, ElementsAre("ranks 0-1: gone (error)"));
}

TEST(LineMerger, add__an_error_that_names_its_rank_keeps_that_beginning) {
  Merged merged(2);
  for (Rank rank = 0; rank < 2; ++rank) {
    merged.merger.add(rank, "tarpon: rank 0: full\ntarpon: ranks 0-1: late\ntarpon: rank 1 came\n",
                      kStart);
  }
  EXPECT_THAT(merged.lines, ElementsAre("rank 0: full (error)", "ranks 0-1: late (error)",
                                        "ranks 0-1: rank 1 came (error)"));
}

TEST(LineMerger, add__one_rank_in_all_speaks_for_itself) {
  Merged merged(1);
  merged.merger.add(0, "tarpon: full\nplain\n", kStart);
  EXPECT_THAT(merged.lines, ElementsAre("tarpon: full (error)", "plain"));
}

TEST(LineMerger, add__long_lines_and_many_lines_are_bounded) {
  std::size_t bytes = 0;
  LineMerger merger(1, [&](std::string_view line, bool) { bytes += line.size(); });
  for (int i = 0; i < 100; ++i) merger.add(0, std::string(10000, 'x'), kStart);
  EXPECT_GE(bytes, 900000u);
  merger.finish(0, kStart);
  EXPECT_EQ(bytes, 1000000u);
  // Above 256 lines the oldest ones leave at once.
  int count = 0;
  LineMerger many(2, [&](std::string_view, bool) { ++count; });
  for (int i = 0; i < 10000; ++i) many.add(0, std::to_string(i) + "\n", kStart);
  EXPECT_EQ(count, 10000 - 256);
}

}  // namespace
}  // namespace tarpon::process_group_test
