// Jobs of more than 64 ranks: a process each, on namespaces that are their hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_large_test {
namespace {

using ::testing::HasSubstr;

/// `tarpon COMMAND` of `ranks` ranks on namespaces with `per_host` each.
Ended large(const char* command, int ranks, const std::string& per_host,
            const std::vector<std::string>& flags) {
  Command tarpon = tool({command, "--local-ranks", std::to_string(ranks), "--net", "veth",
                         "--per-host", per_host, "--datapath", "uring"});
  tarpon.arguments.insert(tarpon.arguments.end(), flags.begin(), flags.end());
  return run(tarpon);
}

TEST(CliLarge, exact_and_bounded_calls_of_96_ranks) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const ScratchDirectory scratch;
  for (const std::string mode : {"exact", "bounded"}) {
    const Ended ended = large("allreduce", 96, "16",
                              {"--mode", mode, "-b", "8", "-e", "2K", "-f", "256", "-n", "2", "-w",
                               "1", "--json", scratch / "j"});
    EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
    EXPECT_EQ(ended.error, "");
    EXPECT_THAT(unwrapped(ended.out),
                HasSubstr("# hosts: 96 ranks on 6 hosts (16 each), in rails"));
    const nlohmann::json report = json_of(scratch / "j");
    EXPECT_EQ(report["config"]["ranks"].size(), 96u);
    EXPECT_EQ(report["config"]["ranks"][95]["datapath"], "uring");
    for (const auto& row : report["results"]) {
      EXPECT_EQ(row["algorithm"], "hosts");
      EXPECT_EQ(row["nwrong"], mode == "exact" ? nlohmann::json(0) : nlohmann::json());
    }
    EXPECT_THAT(ended.out, HasSubstr(mode == "exact" ? "Out of bounds values : 0 OK"
                                                     : "Out of bounds values : not checked"));
  }
}

TEST(CliLarge, other_collectives_of_66_ranks_that_lie_round_robin) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  for (const char* command : {"broadcast", "all_gather", "reduce_scatter"}) {
    const Ended ended =
        large(command, 66, "33/round-robin", {"-b", "32K", "-e", "32K", "-n", "2", "-w", "1"});
    expect_good(ended);
    EXPECT_THAT(ended.out, HasSubstr("Out of bounds values : 0 OK"));
  }
}

TEST(CliLarge, jobs_that_are_no_grid__end_with_one_line) {
  const Ended one_host = run(tool({"allreduce", "--local-ranks", "96", "-b", "8", "-e", "8"}));
  EXPECT_EQ(one_host.exit_code, 2);
  EXPECT_THAT(one_host.error, HasSubstr("96 ranks on 1 host: start at most 64 on a host"));
  EXPECT_EQ(std::count(one_host.error.begin(), one_host.error.end(), '\n'), 1) << one_host.error;
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const Ended uneven = large("allreduce", 70, "11", {"-b", "8", "-e", "8"});
  EXPECT_EQ(uneven.exit_code, 2);
  EXPECT_THAT(unwrapped(uneven.error), HasSubstr("needs as many on each host"));
  const Ended check = large("check", 70, "10", {});
  EXPECT_EQ(check.exit_code, 2);
  EXPECT_THAT(unwrapped(check.error), HasSubstr("start one rank on each host"));
}

}  // namespace
}  // namespace tarpon::test::cli_large_test
