// Ranks that are interrupted, killed or stopped: the job ends, names them, and leaves nothing.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "tests/support/allreduce_run.h"
#include "transport/clock.h"

namespace tarpon::test::cli_faults_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A job that ends only when somebody ends it.
const std::vector<std::string> kEndless{"-b", "16K", "-e", "16K", "-n", "1000000000"};

/// The last line of the table's head: from then on the ranks exchange data.
constexpr const char* kRunning = "(elements)";

Command endless(int ranks, const char* network) {
  Command command = tool({"allreduce", "--local-ranks", std::to_string(ranks), "--net", network});
  command.arguments.insert(command.arguments.end(), kEndless.begin(), kEndless.end());
  return command;
}

std::vector<std::string> links() {
  std::vector<std::string> names;
  struct if_nameindex* all = ::if_nameindex();
  for (auto* link = all; link != nullptr && link->if_index != 0; ++link) {
    names.emplace_back(link->if_name);
  }
  ::if_freenameindex(all);
  return names;
}

class CliFaults : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string_view(GetParam()) == "veth" && ::geteuid() != 0) {
      GTEST_SKIP() << "network namespaces need root";
    }
    links_before_ = links();
  }

  void expect_nothing_left(const Process& process) {
    EXPECT_TRUE(process.left_nothing()) << "a process of the job is still there";
    EXPECT_EQ(links(), links_before_);
  }

  std::vector<std::string> links_before_;
};

TEST_P(CliFaults, interrupted__ends_all) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Process job(endless(3, GetParam()));
    ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
    ::kill(job.pid(), signal);
    const Ended ended = job.wait();
    EXPECT_FALSE(ended.hung);
    EXPECT_EQ(ended.exit_code, 128 + signal);
    EXPECT_THAT(ended.error, HasSubstr(fmt::format("interrupted by signal {}", signal)));
    expect_nothing_left(job);
  }
}

TEST_P(CliFaults, rank_killed__named) {
  for (const std::size_t rank : {0u, 1u}) {
    Process job(endless(3, GetParam()));
    ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
    const auto ranks = job.children();
    ASSERT_EQ(ranks.size(), 3u);
    ::kill(ranks[rank], SIGKILL);
    const Ended ended = job.wait();
    EXPECT_FALSE(ended.hung);
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.error, HasSubstr(fmt::format("rank {} was killed by signal 9", rank)));
    expect_nothing_left(job);
  }
}

TEST_P(CliFaults, parent_killed__takes_the_ranks_along) {
  const ScratchDirectory scratch;
  Command command = endless(2, GetParam());
  command.environment["TMPDIR"] = scratch.path();
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  ::kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.wait().signal, SIGKILL);
  expect_nothing_left(job);
  EXPECT_THAT(scratch.names(), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Networks, CliFaults, ::testing::Values("loopback", "veth"),
                         [](const auto& network) { return std::string(network.param); });

TEST(CliParent, sigchld_ignored_by_the_parent__ends_as_ever) {
  const auto under_such_a_parent = [](Command command) {
    command.arguments.insert(command.arguments.begin(), {"env", "--ignore-signal=CHLD"});
    return command;
  };
  const Ended good = run(under_such_a_parent(local(2, {"-b", "1K", "-e", "1K", "-n", "1"})));
  EXPECT_FALSE(good.hung);
  expect_good(good);
  Process job(under_such_a_parent(endless(2, "loopback")));
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGKILL);
  const Ended ended = job.wait();
  EXPECT_FALSE(ended.hung);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("rank 1 was killed by signal 9"));
  EXPECT_TRUE(job.left_nothing()) << "a process of the job is still there";
}

TEST(CliTestbed, interrupted__takes_along_what_the_program_started) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  Process job(tool({"testbed", "--local-ranks", "2", "--", "sh", "-c",
                    "sh -c 'echo started {rank}; while :; do sleep 1000; done'; true"}));
  ASSERT_TRUE(job.says("started 0") && job.says("started 1")) << job.wait(0ms).error;
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job.left_nothing()) << "a process of the job is still there";
}

/// Processes in whose environment `mark` stands.
std::vector<pid_t> marked(const std::string& mark) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (content_of(entry.path() / "environ").find(mark) != std::string::npos) {
      found.push_back(std::stoi(pid));
    }
  }
  return found;
}

/// Network namespaces in which a process lives.
std::set<std::string> namespaces() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code gone;  // a process that has ended, or one of the kernel's
    found.insert(std::filesystem::read_symlink(entry.path() / "ns/net", gone).string());
  }
  return found;
}

TEST(CliTestbed, killed__takes_grandchildren_and_namespaces_along) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  for (const bool kill_worker : {false, true}) {
    const std::string mark = fmt::format("TARPON_TEST_MARK={}-{}-", ::getpid(), kill_worker);
    Command command =
        tool({"testbed", "--local-ranks", "2", "--", "sh", "-c",
              "setsid sleep 1000 & (setsid sh -c 'trap \"\" TERM; sleep 1000 & wait' &) ; "
              "sleep 0.3; echo started {rank}; sleep 1000"});
    command.environment["TARPON_TEST_MARK"] = mark.substr(mark.find('=') + 1);
    Process job(command);
    ASSERT_TRUE(job.says("started 0") && job.says("started 1")) << job.wait(0ms).error;
    EXPECT_GE(marked(mark).size(), 10u);
    std::set<std::string> of_job;
    for (const pid_t rank : job.children()) {
      of_job.insert(std::filesystem::read_symlink(fmt::format("/proc/{}/ns/net", rank)).string());
    }
    ASSERT_EQ(of_job.size(), 2u);
    ::kill(kill_worker ? job.worker() : job.pid(), SIGKILL);
    job.wait();
    // 2 s of grace for those that ignore SIGTERM; far less than this.
    for (int i = 0; i < 1000 && !marked(mark).empty(); ++i) {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      ::usleep(20'000);
    }
    EXPECT_TRUE(marked(mark).empty());
    for (const std::string& space : namespaces()) EXPECT_FALSE(of_job.contains(space)) << space;
  }
}

TEST(CliTestbed, background_dies__fails_the_run) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const ScratchDirectory scratch;
  Process job(
      tool({"testbed", "--local-ranks", "2", "--background", "1", "--", "sh", "-c",
            "echo started {rank}; while [ ! -e " + scratch / "end" + " ]; do sleep 0.01; done"}));
  ASSERT_TRUE(job.says("started 0") && job.says("started 1")) << job.wait(0ms).error;
  const auto children = job.children();  // the traffic came first
  ASSERT_EQ(children.size(), 4u);
  ::kill(children[0], SIGKILL);
  ASSERT_TRUE(process_ends(children[0]));
  std::ofstream(scratch / "end") << "now";
  const Ended ended = job.wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("background traffic ended before the job did"));
}

/// Three ranks by hand under a deadline of 1 s; `signal` hits one, the others are returned.
std::vector<Ended> strike(std::size_t victim, int signal) {
  std::vector<std::string> arguments = kEndless;
  arguments.insert(arguments.end(), {"--deadline", "1s"});
  std::vector<Process> ranks;
  for (const Command& command : ranks_by_hand(3, free_meeting_point(), arguments)) {
    ranks.emplace_back(command);
  }
  EXPECT_TRUE(ranks[0].says(kRunning)) << ranks[0].wait(0ms).error;
  ::kill(ranks[victim].pid(), signal);
  std::vector<Ended> others;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank != victim) others.push_back(ranks[rank].wait());
  }
  return others;
}

void expect_blamed(const std::vector<Ended>& others, std::size_t victim) {
  for (const Ended& ended : others) {
    EXPECT_FALSE(ended.hung);
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
    EXPECT_THAT(ended.error, HasSubstr("; tarpon check shows pairs of ranks"));
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const bool expected = rank == victim;
      EXPECT_EQ(ended.error.find(fmt::format("from rank {}", rank)) != std::string::npos, expected)
          << ended.error;
    }
  }
}

TEST(CliStopped, rank__named_at_the_deadline) {
  for (const std::size_t victim : {0u, 2u}) {
    SCOPED_TRACE(fmt::format("rank {} stopped", victim));
    expect_blamed(strike(victim, SIGSTOP), victim);
  }
}

TEST(CliStopped, killed_rank__named_by_the_others) {
  for (const std::size_t victim : {0u, 1u}) {
    for (const Ended& ended : strike(victim, SIGKILL)) {
      EXPECT_FALSE(ended.hung);
      EXPECT_EQ(ended.exit_code, 1);
      EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
      EXPECT_THAT(ended.error,
                  HasSubstr(fmt::format("rank {} is dead: its control connection ended", victim)));
      EXPECT_THAT(ended.error, Not(HasSubstr("control channel")));
    }
  }
}

TEST(CliStopped, local_ranks__end_as_well) {
  Command command = endless(3, "loopback");
  command.arguments.insert(command.arguments.end(), {"--deadline", "1s"});
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 3u);
  const Time stopped = monotonic_now();
  ::kill(ranks[1], SIGSTOP);
  const Ended ended = job.wait();
  EXPECT_FALSE(ended.hung);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("from rank 1"));
  EXPECT_THAT(ended.error, HasSubstr("\nrank 1 did not end and was killed\n"));
  // Deadline, control channel, grace, SIGTERM: 1 + 1 + 2 + 1 s, and the speed of this machine.
  EXPECT_LT(monotonic_now() - stopped, 9s);
  EXPECT_TRUE(job.left_nothing());
}

// Bounded runs leave a silent rank out, also of the barrier before each call, and take it back.
TEST(CliStopped, bounded__goes_on_without_the_rank) {
  Process job(tool({"allreduce", "--local-ranks", "3", "-b", "16K", "-e", "16K", "-n", "3000", "-w",
                    "60", "--mode", "bounded"}));
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[2], SIGSTOP);
  std::this_thread::sleep_for(1s);
  ::kill(ranks[2], SIGCONT);
  const Ended ended = job.wait();
  EXPECT_FALSE(ended.hung);
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("late ranks: 2 (")) << ended.error;
}

}  // namespace
}  // namespace tarpon::test::cli_faults_test
