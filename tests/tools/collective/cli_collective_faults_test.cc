// Ranks that are killed, stopped or late beyond the deadline, in each collective: the other ranks
// end by the deadline and name that rank. Ranks that differ or refuse:
// tests/collectives/collective_faults_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/allreduce_run.h"
#include "transport/clock.h"

namespace tarpon::test::cli_collective_faults_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr std::size_t kRanks = 3, kGuilty = 1;
/// Deadlines of the call and of the control channel, both 1 s, and the speed of this machine.
constexpr Duration kLongest = 6s;

class CliCollectiveFaults : public ::testing::TestWithParam<const char*> {
 protected:
  /// Ranks by hand that call until one of them fails. `strike` gets the guilty rank when calls are
  /// under way. Returns how the others ended; they may take kLongest from then on.
  static std::vector<Ended> others(const std::function<void(Process&)>& strike,
                                   const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"-b", "4M",         "-e",         "4M",
                                       "-n", "1000000000", "--deadline", "1s"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<Process> ranks;
    for (Command& command : ranks_by_hand(kRanks, free_meeting_point(), arguments)) {
      command.arguments[1] = GetParam();
      ranks.emplace_back(command);
    }
    EXPECT_TRUE(ranks[0].says("(elements)")) << ranks[0].wait(0ms).error;
    const Time struck = monotonic_now();
    strike(ranks[kGuilty]);
    std::vector<Ended> ended;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      if (rank != kGuilty) ended.push_back(ranks[rank].wait());
    }
    EXPECT_LT(monotonic_now() - struck, kLongest);
    return ended;
  }

  /// One line from each, which says `blamed` of the guilty rank.
  static void expect_named(const std::vector<Ended>& others, const char* blamed) {
    for (const Ended& ended : others) {
      EXPECT_FALSE(ended.hung);
      EXPECT_EQ(ended.exit_code, 1);
      EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
      EXPECT_THAT(ended.error, ContainsRegex(blamed));
    }
  }

  /// A rank whose call needs the guilty rank names it alone. The other one may be at the next
  /// barrier, and miss that rank there too.
  static void expect_missing(const std::vector<Ended>& others) {
    expect_named(others, "no .* from ranks? (0, )?1[, ]");
    EXPECT_THAT(others[0].error + others[1].error, HasSubstr(" from rank 1 "));
  }
};

TEST_P(CliCollectiveFaults, killed__is_dead_to_the_others) {
  expect_named(others([](Process& rank) { ::kill(rank.pid(), SIGKILL); }),
               "rank 1 is dead: its control connection ended");
}

TEST_P(CliCollectiveFaults, stopped__is_named_at_the_deadline) {
  expect_missing(others([](Process& rank) { ::kill(rank.pid(), SIGSTOP); }));
}

TEST_P(CliCollectiveFaults, late_beyond_the_deadline__is_named) {
  expect_missing(others([](Process&) {}, {"--inject-late", "1=3s", "-w", "0"}));
}

INSTANTIATE_TEST_SUITE_P(Commands, CliCollectiveFaults,
                         ::testing::Values("all_gather", "reduce_scatter", "broadcast", "reduce",
                                           "alltoall", "gather", "scatter", "sendrecv"),
                         [](const auto& command) { return std::string(command.param); });

}  // namespace
}  // namespace tarpon::test::cli_collective_faults_test
