// `tarpon flight` and `tarpon status` on real jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace tarpon::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kRunning = "(elements)";

/// A job that ends only when somebody stops one of its ranks.
Command endless(const std::string& deadline) {
  return tool({"allreduce", "--local-ranks", "3", "-b", "16K", "-e", "16K", "-n", "1000000000",
               "--deadline", deadline});
}

nlohmann::json json_of(const Ended& ended) {
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  return nlohmann::json::parse(ended.out, nullptr, false);
}

/// What the ranks among `pids` say now.
nlohmann::json status_of(const std::vector<pid_t>& pids) {
  nlohmann::json found = nlohmann::json::array();
  for (const auto& rank : json_of(run(tool({"status", "--json"})))) {
    if (std::find(pids.begin(), pids.end(), rank["pid"].get<pid_t>()) != pids.end()) {
      found.push_back(rank);
    }
  }
  return found;
}

TEST(CliFlight, stopped_rank__is_the_guilty_one) {
  const ScratchDirectory scratch;
  Command command = endless("1s");
  command.arguments.insert(command.arguments.end(), {"--flight", scratch / "f"});
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[1], SIGSTOP);
  const Ended ended = job.wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("tarpon flight " + scratch / "f"));

  const Ended told = run(tool({"flight", scratch / "f", "--svg", scratch / "f.svg"}));
  EXPECT_EQ(told.exit_code, 0) << told.error;
  EXPECT_THAT(told.out, HasSubstr("# rank 1   no recording"));
  EXPECT_THAT(told.out, HasSubstr("left no recording: stopped, killed or cut off"));
  EXPECT_THAT(content_of(scratch / "f.svg"), HasSubstr("! rank 1"));
  const nlohmann::json json = json_of(run(tool({"flight", "--json", scratch / "f"})));
  ASSERT_EQ(json["verdict"]["guilty"].size(), 1u) << json["verdict"].dump();
  EXPECT_EQ(json["verdict"]["guilty"][0]["rank"], 1);
  EXPECT_EQ(json["world_size"], 3);
}

TEST(CliFlight, killed_by_a_fault__is_the_guilty_one) {
  const ScratchDirectory scratch;
  Command command = endless("20s");
  command.environment["TARPON_FLIGHT"] = scratch / "f";
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[2], SIGSEGV);
  EXPECT_EQ(job.wait().exit_code, 1);
  const nlohmann::json json = json_of(run(tool({"flight", "--json", scratch / "f"})));
  EXPECT_EQ(json["ranks"][2]["signal"], SIGSEGV);
}

TEST(CliFlight, usr1__leaves_a_recording_of_a_healthy_rank) {
  const ScratchDirectory scratch;
  Command command = endless("20s");
  command.arguments.insert(command.arguments.end(), {"--flight", scratch / "f"});
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const ScratchDirectory none;
  EXPECT_TRUE(none.names().empty());
  ::kill(job.children().at(0), SIGUSR1);
  const auto recorded = [&] { return !run(tool({"flight", scratch / "f"})).out.empty(); };
  for (int i = 0; i < 200 && !recorded(); ++i) ::usleep(20'000);
  EXPECT_THAT(run(tool({"flight", scratch / "f"})).out, HasSubstr("recorded on request"));
}

TEST(CliFlight, good_job__leaves_nothing) {
  const ScratchDirectory scratch;
  const Ended ended = run(tool({"allreduce", "--local-ranks", "2", "-b", "4K", "-e", "4K", "-n",
                                "3", "--flight", scratch / "f"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "f"));
  EXPECT_THAT(run(tool({"flight", scratch / "f"})).error, HasSubstr("no flight recording there"));
}

TEST(CliFlight, stuck_job__status_names_the_stopped_rank_and_flight_reads_the_others) {
  Process job(endless("30s"));
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[2], SIGSTOP);
  bool stuck = false;
  nlohmann::json status;
  for (int i = 0; i < 20 && !stuck; ++i) {
    status = status_of(ranks);
    stuck = status.size() == 3 && status[0].contains("operations") &&
            !status[0]["operations"].empty() &&
            status[0]["operations"][0]["age_ms"].get<double>() > 500;
  }
  ASSERT_TRUE(stuck) << status.dump();
  EXPECT_THAT(status[2]["error"].get<std::string>(), HasSubstr("is stopped"));
  bool named = false;  // rank 0 may wait for rank 1, which waits for rank 2
  for (const std::size_t rank : {0u, 1u}) {
    for (const auto& awaited : status[rank]["operations"][0]["waiting_for"]) named |= awaited == 2;
  }
  EXPECT_TRUE(named) << status.dump();

  const Ended table = run(tool({"status"}));
  EXPECT_THAT(table.out, HasSubstr("WAITING FOR"));
  EXPECT_THAT(table.out, HasSubstr("the process is stopped"));
  const std::string id = status[0]["job"];
  const Ended flight = run(tool({"flight", "--job", id}));
  EXPECT_EQ(flight.exit_code, 0);
  EXPECT_THAT(flight.out, HasSubstr("is still open after"));
  EXPECT_THAT(flight.out, HasSubstr("rank 2: "));
  EXPECT_THAT(flight.error, HasSubstr("rank 2 of job " + id + ": no answer"));
}

TEST(CliFlight, wrong_input__one_line) {
  const ScratchDirectory scratch;
  std::ofstream(scratch / "x.flight")
      << "nothing of that kind, but long enough to hold a header: " << std::string(200, '.');
  for (const auto& [arguments, code, text] :
       std::vector<std::tuple<std::vector<std::string>, int, std::string>>{
           {{"flight", scratch / "none"}, 1, "No such file"},
           {{"flight", scratch / "x.flight"}, 1, "no flight recording"},
           {{"flight", "--job", "xyz", scratch / "x.flight"}, 2, "is no job"},
           {{"allreduce", "--local-ranks", "1", "--flight", scratch / "x.flight"},
            2,
            "is no directory"},
       }) {
    const Ended ended = run(tool(arguments));
    EXPECT_EQ(ended.exit_code, code) << ended.error;
    EXPECT_THAT(ended.error, HasSubstr(text));
    EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
  }
}

}  // namespace
}  // namespace tarpon::test
