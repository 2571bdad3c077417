#include "tests/guest/jobs.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "xdp/program.h"

namespace tarpon::guest {
namespace {

std::string report_of(const Job& job) {
  return job.user ? "/tmp/report-user.json" : "/tmp/report.json";
}

}  // namespace

test::Command command_on(const Host& host, std::vector<std::string> arguments, bool user) {
  if (user) {
    const std::string id = std::to_string(kUser);
    arguments.insert(arguments.begin(), {"--setuid", id, "--setgid", id});
  }
  arguments.insert(arguments.begin(), {"nsenter", "--net=" + namespace_file(host)});
  return {std::move(arguments), {}, "."};
}

std::string run_on(const Host& host, std::vector<std::string> arguments) {
  const test::Ended ended = test::run(command_on(host, std::move(arguments)));
  EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
  return ended.out;
}

void allreduce(const Job& job) {
  std::vector<test::Command> commands;
  for (std::size_t rank = 0; rank < std::size(kHosts); ++rank) {
    // kLeastPackets knows the sizes and numbers.
    std::vector<std::string> all{
        "tarpon",       "allreduce",
        "--rank",       std::to_string(rank),
        "--world-size", "2",
        "--rendezvous", std::string("tcp://") + kHosts[0].address + ":29500",
        "--interface",  kHosts[rank].interface,
        "-b",           "64",
        "-e",           "256K",
        "-f",           "16",
        "-n",           "5",
        "-w",           "1",
        "-c",           "1",
        "--deadline",   "20s"};
    if (rank == 0) all.insert(all.end(), {"--json", report_of(job)});
    all.insert(all.end(), job.arguments.begin(), job.arguments.end());
    commands.push_back(command_on(kHosts[rank], std::move(all), job.user));
  }
  for (const test::Ended& ended : test::run_together(commands)) {
    ASSERT_EQ(ended.exit_code, 0) << ended.out << ended.error;
  }
  const auto report = nlohmann::json::parse(test::content_of(report_of(job)), nullptr, false);
  ASSERT_TRUE(report.is_object());
  ASSERT_EQ(report["config"]["ranks"].size(), std::size(kHosts));
  for (const auto& rank : report["config"]["ranks"]) {
    EXPECT_EQ(rank["datapath"], job.datapath);
    EXPECT_THAT(rank["datapath_reason"], testing::HasSubstr(job.reason));
  }
  ASSERT_EQ(report["results"].size(), 2 * 4u) << "out of place and in place, of 4 sizes";
  for (const auto& result : report["results"]) {
    EXPECT_EQ(result["nwrong"], 0);
    EXPECT_EQ(result["lost_fraction"], 0.0);
  }
}

void expect_program_at_work() {
  for (const Host& host : kHosts) {
    const auto program = xdp::Program::find(enter(host));
    ASSERT_TRUE(program) << program.error().message;
    const auto verdicts = program->maps().verdicts();
    ASSERT_TRUE(verdicts) << verdicts.error().message;
    EXPECT_GT((*verdicts)[TARPON_VERDICT_RING], kLeastPackets);
    EXPECT_EQ((*verdicts)[TARPON_VERDICT_QUEUE], 0u);
    EXPECT_TRUE(program->maps().ports().empty());
  }
}

}  // namespace tarpon::guest
