// AllReduce by AF_XDP between the guest's two hosts, by the tool, as a user would start it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/guest/guest.h"
#include "tests/tools/command.h"

namespace tarpon::guest {
namespace {

using test::Command;
using test::Ended;

constexpr const char* kReport = "/tmp/report.json";

/// One rank on each host; rank 0 writes kReport.
std::vector<Ended> allreduce(const std::vector<std::string>& more) {
  std::vector<Command> commands;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    Command command{{"nsenter", "--net=" + namespace_file(kHosts[rank]), "tarpon", "allreduce",
                     "--rank", std::to_string(rank), "--world-size", "2", "--rendezvous",
                     std::string("tcp://") + kHosts[0].address + ":29500", "--interface",
                     kHosts[rank].interface, "-c", "1", "--deadline", "20s"},
                    {{"TARPON_DEBUG", "INFO"}}};
    command.arguments.insert(command.arguments.end(), more.begin(), more.end());
    if (rank == 0) command.arguments.insert(command.arguments.end(), {"--json", kReport});
    commands.push_back(std::move(command));
  }
  return test::run_together(commands);
}

void expect_exact_on_xdp(const std::vector<Ended>& ended, const char* mode) {
  for (std::size_t rank = 0; rank < ended.size(); ++rank) {
    ASSERT_EQ(ended[rank].exit_code, 0) << ended[rank].out << ended[rank].error;
    EXPECT_THAT(ended[rank].error,
                testing::ContainsRegex(std::string("rank ") + std::to_string(rank) + " at .* on " +
                                       kHosts[rank].interface + ", xdp \\(.*" + mode))
        << rank;
  }
  const auto report = nlohmann::json::parse(test::content_of(kReport), nullptr, false);
  ASSERT_TRUE(report.is_object()) << ended[0].out;
  for (const auto& rank : report["config"]["ranks"]) EXPECT_EQ(rank["datapath"], "xdp");
  ASSERT_FALSE(report["results"].empty());
  for (const auto& result : report["results"]) {
    EXPECT_EQ(result["datapath"], "xdp");
    EXPECT_EQ(result["nwrong"], 0);
    EXPECT_EQ(result["lost_fraction"], 0.0);
  }
}

const std::vector<std::string> kSizes{"-b", "64", "-e", "1M", "-f", "16", "-n", "5", "-w", "1"};

std::vector<std::string> sizes_and(std::vector<std::string> more) {
  more.insert(more.end(), kSizes.begin(), kSizes.end());
  return more;
}

TEST(ZeroCopyAllreduceTest, is_exact) {
  set_mtu(1500);
  expect_exact_on_xdp(allreduce(sizes_and({"--datapath", "xdp"})), "zero-copy");
}

TEST(ZeroCopyAllreduceTest, is_exact_with_the_largest_frames_of_one_buffer) {
  set_mtu(3498);
  expect_exact_on_xdp(allreduce(sizes_and({"--datapath", "xdp"})), "zero-copy");
}

}  // namespace
}  // namespace tarpon::guest
