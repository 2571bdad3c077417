// `tarpon allreduce --multicast`: its report, with every datapath and where it cannot be.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/child_program.h"
#include "tests/support/testbed_network.h"

namespace tarpon::test::cli_multicast_test {
namespace {

using ::testing::HasSubstr;

/// A run of 4 ranks with `--multicast`, and its report.
struct MulticastRun {
  explicit MulticastRun(const std::vector<std::string>& more) {
    const ScratchDirectory scratch;
    std::vector<std::string> arguments{"allreduce", "--local-ranks", "4",  "-b",         "128K",
                                       "-e",        "128K",          "-n", "10",         "-w",
                                       "2",         "--multicast",   "-J", scratch / "j"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ended = run(tool(arguments));
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
    std::ifstream(scratch / "j") >> json;
  }
  std::string multicast() const { return json.at("config").at("multicast"); }

  Ended ended;
  nlohmann::json json;
};

class CliMulticast : public TestbedTest {};

TEST_F(CliMulticast, report__a_rank_sends_the_bucket_once) {
  for (const char* mode : {"exact", "bounded"}) {
    const MulticastRun run({"--net", "veth", "--mode", mode});
    EXPECT_THAT(run.ended.out, HasSubstr("# multicast: on\n"));
    EXPECT_EQ(run.multicast(), "on");
    for (const auto& result : run.json.at("results")) {
      EXPECT_EQ(result.at("nwrong"), 0);
      for (const double bytes : result.at("sent_bytes")) {
        EXPECT_LT(bytes, 1.35 * 131072) << mode << ": one by one it is 1.57 buckets";
      }
    }
  }
}

TEST_F(CliMulticast, report__says_why_it_is_off) {
  const MulticastRun loopback({});
  EXPECT_EQ(loopback.multicast(), "off: rank 0 shares the network interfaces of rank 1");
  EXPECT_THAT(loopback.ended.out, HasSubstr("# multicast: off: rank 0 shares"));
}

}  // namespace
}  // namespace tarpon::test::cli_multicast_test
