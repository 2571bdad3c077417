// A SIGKILL of either process of a guarded run leaves no process behind.
#include "tools/job/guarded_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

#include "tools/job/process_group.h"
#include "transport/clock.h"

namespace tarpon::guarded_run_test {
namespace {

constexpr Duration kBound = 30s;  // far beyond the 2 s after which SIGKILL follows SIGTERM

/// Process ids that all processes of a test write down.
struct Seen {
  std::atomic<pid_t> worker = 0;
  std::atomic<int> ready = 0;
  std::array<std::atomic<pid_t>, 4> strays = {};
};

class GuardedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    at_ = ::mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at_, MAP_FAILED);
    seen_ = new (at_) Seen();
  }
  void TearDown() override {
    for (const auto& stray : seen_->strays) {
      if (stray > 0 && is_there(stray)) ::kill(stray, SIGKILL);
    }
    ::munmap(at_, sizeof(Seen));
  }

  /// Two ranks; each leaves a process that has forked twice and left its session, and ignores
  /// SIGTERM, beside a grandchild that stays.
  int ranks() const {
    seen_->worker = ::getpid();
    ProcessGroupOptions options;
    options.last_words = 100ms;
    const auto ended = run_process_group(
        2, [this](Rank rank) { return start_strays(rank); }, options);
    return ended && ended->interrupted_by != 0 ? 128 + ended->interrupted_by : 1;
  }

  int start_strays(Rank rank) const {
    if (::fork() == 0) {
      ::setsid();
      if (::fork() > 0) ::_exit(0);
      stay(2u * rank);
    }
    if (::fork() == 0) stay(2u * rank + 1);
    for (;;) ::pause();
  }

  [[noreturn]] void stay(std::size_t place) const {
    std::signal(SIGTERM, SIG_IGN);
    seen_->strays[place] = ::getpid();
    ++seen_->ready;
    for (;;) ::pause();
  }

  /// The guard as a child of this process.
  pid_t start() const {
    const pid_t guard = ::fork();
    if (guard == 0) ::_exit(run_guarded([this] { return ranks(); }).value_or(99));
    const Time until = monotonic_now() + kBound;
    while (seen_->ready < 4 && monotonic_now() < until) ::usleep(1000);
    EXPECT_EQ(seen_->ready, 4);
    return guard;
  }

  static bool is_there(pid_t pid) {
    // Where this process is a subreaper, a killed orphan may become its zombie.
    ::waitpid(pid, nullptr, WNOHANG);
    return ::kill(pid, 0) == 0;
  }

  void expect_nothing_left() const {
    const Time until = monotonic_now() + kBound;
    for (const auto& stray : seen_->strays) {
      while (is_there(stray) && monotonic_now() < until) ::usleep(1000);
      EXPECT_FALSE(is_there(stray));
    }
    while (is_there(seen_->worker) && monotonic_now() < until) ::usleep(1000);
    EXPECT_FALSE(is_there(seen_->worker));
  }

  void* at_ = nullptr;
  Seen* seen_ = nullptr;
};

int code_of(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(GuardedRun, value__is_passed_on) {
  const auto code = run_guarded([] { return 42; });
  ASSERT_TRUE(code) << code.error().message;
  EXPECT_EQ(*code, 42);
}

TEST_F(GuardedRun, started__runs_here__and_its_error_ends_the_child) {
  const pid_t own = ::getpid();
  pid_t seen = 0;
  const auto code = run_guarded([] { return 3; },
                                [&]() -> Result<void> {
                                  seen = ::getpid();
                                  return {};
                                });
  EXPECT_EQ(code.value_or(99), 3);
  EXPECT_EQ(seen, own);
  const auto ended = run_guarded(
      [] {
        ::pause();
        return 0;
      },
      []() -> Result<void> { return fail(Error::Code::io, "not started"); });
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().message, "not started");
  const auto group = run_process_group(
      2,
      [](Rank) {
        ::pause();
        return 0;
      },
      {.started = []() -> Result<void> { return fail(Error::Code::io, "not started"); }});
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().message, "not started");
}

TEST_F(GuardedRun, sigchld_ignored_by_the_parent__value_is_passed_on) {
  const pid_t guard = ::fork();
  if (guard == 0) {
    std::signal(SIGCHLD, SIG_IGN);
    const auto code = run_guarded([] {
      const auto ended = run_process_group(2, [](Rank rank) { return rank == 1 ? 7 : 0; });
      return ended && ended->first_failure == Rank{1} ? ended->ranks[1].exit_code : 1;
    });
    const bool as_before = std::signal(SIGCHLD, SIG_DFL) == SIG_IGN;
    ::_exit(as_before ? code.value_or(99) : 98);
  }
  EXPECT_EQ(code_of(guard), 7);
}

TEST_F(GuardedRun, guard_killed__takes_everything_along) {
  const pid_t guard = start();
  ::kill(guard, SIGKILL);
  EXPECT_EQ(code_of(guard), 128 + SIGKILL);
  expect_nothing_left();
}

TEST_F(GuardedRun, worker_killed__takes_everything_along) {
  const pid_t guard = start();
  ::kill(seen_->worker, SIGKILL);
  EXPECT_EQ(code_of(guard), 99) << "an error, not a value";
  expect_nothing_left();
}

TEST_F(GuardedRun, signal__is_passed_on) {
  const pid_t guard = start();
  ::kill(guard, SIGTERM);
  EXPECT_EQ(code_of(guard), 128 + SIGTERM);
  expect_nothing_left();
}

}  // namespace
}  // namespace tarpon::guarded_run_test
