// `tarpon testbed` from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_testbed_test {
namespace {

using ::testing::HasSubstr;

TEST(CliTestbed, program__one_namespace_a_rank) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const ScratchDirectory scratch;
  const Ended ended = run(tool({"testbed", "--local-ranks", "3", "--", "sh", "-c",
                                "echo $RANK of $WORLD_SIZE at $MASTER_ADDR $(readlink "
                                "/proc/self/ns/net) > " +
                                    scratch.path() + "/{rank}"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(content_of(scratch / "0"), HasSubstr("0 of 3 at 10.77.0.1 net:"));
  EXPECT_THAT(content_of(scratch / "2"), HasSubstr("2 of 3 at 10.77.0.1 net:"));
  const auto network = [&](const char* rank) {
    const std::string text = content_of(scratch / rank);
    return text.substr(text.find("net:"));
  };
  EXPECT_NE(network("0"), network("2"));
  // A code of the program's own means nothing here: it is told.
  const Ended failed =
      run(tool({"testbed", "--local-ranks", "2", "--", "sh", "-c", "exit $((2 * RANK))"}));
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_EQ(failed.error, "tarpon: rank 1 exited with code 2\n");
}

TEST(CliTestbed, program__learns_its_place_on_its_host) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const ScratchDirectory scratch;
  const auto places = [&](const char* per_host) {
    const Ended ended =
        run(tool({"testbed", "--local-ranks", "5", "--per-host", per_host, "--", "sh", "-c",
                  "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE > " + scratch.path() + "/{rank}"}));
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
    std::string text;
    for (const char* rank : {"0", "1", "2", "3", "4"}) text += content_of(scratch / rank);
    return text;
  };
  EXPECT_EQ(places("3"), "0 of 3\n1 of 3\n2 of 3\n0 of 2\n1 of 2\n");
  EXPECT_EQ(places("3/round-robin"), "0 of 3\n0 of 2\n1 of 3\n1 of 2\n2 of 3\n");
}

/// Shell words that wait until process `number` has dropped capabilities, then print those left.
std::string capabilities_of(const std::string& number) {
  const std::string file = "/proc/" + number + "/status";
  return "until grep -q 'NoNewPrivs:.1' " + file +
         "; do sleep 0.01; done; sleep 0.1; grep CapPrm " + file + "; ";
}

TEST(CliTestbed, processes_that_wait__keep_few_capabilities__and_the_program_all) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const Ended ended =
      run(tool({"testbed", "--local-ranks", "1", "--", "sh", "-c",
                capabilities_of("$PPID") + "set -- $(cat /proc/$PPID/stat); " +
                    capabilities_of("$4") + "grep -E 'CapPrm|NoNew' /proc/self/status"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  const std::string own = content_of("/proc/self/status");
  const std::size_t at = own.find("CapPrm:");
  EXPECT_EQ(ended.out, "CapPrm:\t0000000000200020\nCapPrm:\t0000000000000020\n" +
                           own.substr(at, own.find('\n', at) - at) + "\nNoNewPrivs:\t0\n");
}

TEST(CliTestbed, background_traffic__keeps_no_capability) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  // Two processes carry the flow, beside the ranks. Without them the loop ends by the test's limit.
  const Ended ended =
      run(tool({"testbed", "--local-ranks", "2", "--background", "1", "--", "sh", "-c",
                "none() { for child in $(cat /proc/$PPID/task/$PPID/children); do "
                "grep CapPrm:.0000000000000000 /proc/$child/status; done | wc -l; }; "
                "until test $RANK = 1 || test $(none) = 2; do sleep 0.01; done; echo $RANK"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("0\n"));
}

TEST(CliTestbed, program__gets_a_secret_where_packets_are_to_be_keyed) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  Command command = tool({"testbed", "--local-ranks", "2", "--", TARPON_TOOL, "allreduce", "-b",
                          "64K", "-e", "64K", "-n", "2"});
  command.environment["TARPON_INTEGRITY"] = "keyed";
  const Ended ended = run(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("# secret: connections are TLS 1.3, packets carry tags"));
}

TEST(CliTestbed, program__tarpon_itself) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  expect_good(run(tool({"testbed", "--local-ranks", "2", "--", TARPON_TOOL, "allreduce", "-b", "1K",
                        "-e", "1K", "-n", "2"})));
}

}  // namespace
}  // namespace tarpon::test::cli_testbed_test
