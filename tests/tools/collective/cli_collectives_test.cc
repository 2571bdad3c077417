// The commands of all collectives from outside: figures, JSON, options, ranks that differ.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_collectives_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What the table shows of a command on 3 ranks.
struct Row {
  const char* command;
  bool divided;       // `count` is that of one part
  const char* redop;  // "none": -o is refused
  const char* root;   // "-1": -r is refused
  bool in_place = true;
};

constexpr Row kRows[] = {
    {"all_reduce", false, "sum", "-1"},      {"all_gather", true, "none", "-1"},
    {"reduce_scatter", true, "sum", "-1"},   {"broadcast", false, "none", "0"},
    {"reduce", false, "sum", "0"},           {"alltoall", true, "none", "-1"},
    {"gather", true, "none", "0"},           {"scatter", true, "none", "0"},
    {"sendrecv", false, "none", "-1", false}};

Command job(const Row& row, const std::vector<std::string>& more) {
  return local_of(row.command, 3, more);
}

class CliCollectives : public ::testing::TestWithParam<Row> {};

TEST_P(CliCollectives, table__sizes_and_checks_as_nccl_tests) {
  const Row row = GetParam();
  const Ended ended = run(job(row, {"-b", "4K", "-e", "256K", "-f", "64", "-n", "3", "-w", "1"}));
  expect_good(ended);
  EXPECT_THAT(ended.out, HasSubstr(fmt::format(" {}: 3 ranks, over loopback, ", row.command)));
  const auto rows = rows_of(ended.out);
  ASSERT_EQ(rows.size(), 2u) << ended.out;
  // A part is a third, in steps of 16 bytes.
  const auto sizes = row.divided ? std::vector<std::string>{"4080", "262128"}
                                 : std::vector<std::string>{"4096", "262144"};
  const auto counts = row.divided ? std::vector<std::string>{"340", "21844"}
                                  : std::vector<std::string>{"1024", "65536"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_THAT((std::vector(rows[i].begin(), rows[i].begin() + 5)),
                ElementsAre(sizes[i], counts[i], "float", row.redop, row.root));
    EXPECT_EQ(rows[i][8], "0") << "out of place";
    EXPECT_EQ(rows[i][12], row.in_place ? "0" : "N/A") << "in place";
  }
}

TEST_P(CliCollectives, json__names_the_collective_and_its_figures) {
  const Row row = GetParam();
  const ScratchDirectory scratch;
  expect_good(run(job(row, {"-b", "96K", "-e", "96K", "-n", "2", "-w", "0", "-d", "double",
                            "--json", scratch / "j"})));
  const nlohmann::json results = json_of(scratch / "j")["results"];
  ASSERT_EQ(results.size(), row.in_place ? 2u : 1u);
  const double factor = std::string(row.command) == "all_reduce" ? 4.0 / 3
                        : row.divided                            ? 2.0 / 3
                                                                 : 1;
  for (const auto& result : results) {
    EXPECT_EQ(result["collective"], row.command);
    EXPECT_EQ(result["size"], 96 << 10);
    EXPECT_EQ(result["count"], row.divided ? 4096 : 12288);
    EXPECT_EQ(result["type"], "float64");
    EXPECT_EQ(result["redop"], row.redop);
    EXPECT_EQ(std::to_string(result["root"].get<int>()), row.root);
    EXPECT_EQ(result["mode"], "exact");
    EXPECT_EQ(result["nwrong"], 0);
    EXPECT_EQ(result["time_us"]["all"].size(), 2u);
    EXPECT_EQ(result["sent_bytes"].size(), 3u);
    EXPECT_NEAR(result["bus_bw"].get<double>() / result["alg_bw"].get<double>(), factor, 1e-9);
  }
  EXPECT_EQ(results[0]["place"], "out");
  EXPECT_EQ(results.back()["place"], row.in_place ? "in" : "out");
}

bool may_be_bounded(const std::string& command) {
  return command == "all_reduce" || command == "reduce_scatter" || command == "all_gather";
}

TEST_P(CliCollectives, types_and_functions_and_roots__all_right) {
  const Row row = GetParam();
  std::vector<std::string> more{"-b", "20K", "-e", "20K", "-n", "1", "-w", "0", "-d", "all"};
  const bool rooted = std::string(row.root) != "-1", reduces = std::string(row.redop) != "none";
  if (rooted) more.insert(more.end(), {"-r", "all"});
  if (reduces) more.insert(more.end(), {"-o", "all"});
  const Ended ended = run(job(row, more));
  expect_good(ended);
  EXPECT_EQ(rows_of(ended.out).size(), (reduces ? 4u * 5 + 8 * 8 : 12u) * (rooted ? 3 : 1));
}

TEST_P(CliCollectives, options_that_it_does_not_have__refused_with_the_remedy) {
  const Row row = GetParam();
  std::vector<std::vector<std::string>> refused;
  if (std::string(row.command) != "all_reduce") {
    refused = {{"--codec", "on"},    {"--shares", "1,1,1"},   {"--multicast"},
               {"--order", "fixed"}, {"--algorithm", "ring"}, {"--halt-above", "1%"},
               {"--late-rank", "1"}, {"--input", "x.npy"},    {"--inflow", "window"}};
    if (!may_be_bounded(row.command)) {
      refused.insert(refused.end(), {{"--mode", "bounded"}, {"--bound", "1ms"}});
    }
  }
  for (const auto& option : refused) {
    const Ended ended = run(job(row, option));
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_EQ(ended.error, fmt::format("tarpon: {}: tarpon {} has no such option: leave it out, or "
                                       "run tarpon all_reduce (see --help)\n",
                                       option[0], row.command));
  }
  if (std::string(row.redop) == "none") {
    EXPECT_THAT(run(job(row, {"-o", "max"})).error,
                HasSubstr("-o max: a flag of nccl-tests without effect here: this collective "
                          "reduces nothing; leave it out, or give sum"));
  }
  const bool rooted = std::string(row.root) != "-1";
  EXPECT_THAT(run(job(row, {"-r", "3", "-b", "8", "-e", "8"})).error,
              HasSubstr(rooted ? "--root 3 of 3 ranks: ranks count from 0"
                               : "-r 3: a flag of nccl-tests without effect here: this collective "
                                 "has no root; leave it out, or give 0 or -1"));
}

TEST_P(CliCollectives, help__has_its_options_alone) {
  const Row row = GetParam();
  const auto options = options_in_help({row.command});
  EXPECT_EQ(options.contains("--op"), std::string(row.redop) != "none");
  EXPECT_EQ(options.contains("--root"), std::string(row.root) != "-1");
  EXPECT_EQ(options.contains("--mode"), may_be_bounded(row.command));
  EXPECT_TRUE(options.contains("--minbytes"));
}

TEST_P(CliCollectives, faults__repaired) {
  for (const char* fault : {"--inject-loss", "--inject-duplicate", "--inject-reorder"}) {
    expect_good(
        run(job(GetParam(), {"-b", "300K", "-e", "300K", "-n", "2", "-w", "0", fault, "5%"})));
  }
}

// Few of the flipped bits are in a header, where they may end the call.
TEST_P(CliCollectives, wrong_values__counted_and_fail_the_run) {
  std::size_t counted = 0;
  for (const char* seed : {"1", "2", "3"}) {
    const Ended ended =
        run(local_of(GetParam().command, 2,
                     {"-b", "4M", "-e", "4M", "-n", "1", "-w", "0", "--hosts", "off", "--integrity",
                      "none", "--inject-corrupt", "1%", "--seed", seed, "--deadline", "5s"}));
    EXPECT_EQ(ended.exit_code, 1) << ended.out;
    counted += count(ended.out, " FAILED\n");
  }
  EXPECT_GE(counted, 1u);
}

TEST_P(CliCollectives, veth__several_ranks_on_a_host) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const Ended ended = run(local_of(GetParam().command, 4,
                                   {"--net", "veth", "--per-host", "2", "--rate", "2gbit", "-b",
                                    "512K", "-e", "512K", "-n", "2", "-w", "0"}));
  expect_good(ended);
  EXPECT_THAT(ended.out, HasSubstr("# hosts: 4 ranks on 2 hosts"));
  const bool by_memory = std::string(GetParam().command) != "sendrecv";
  EXPECT_EQ(count(ended.out, "sendrecv goes over the network"), by_memory ? 0u : 1u);
}

INSTANTIATE_TEST_SUITE_P(Commands, CliCollectives, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.command); });

TEST(CliCollective, allreduce__is_all_reduce) {
  const auto ended = run(local_of("allreduce", 2, {"-b", "1K", "-e", "1K", "-n", "1", "-w", "0"}));
  expect_good(ended);
  EXPECT_THAT(ended.out, HasSubstr(" all_reduce: 2 ranks"));
  EXPECT_EQ(options_in_help({"allreduce"}), options_in_help({"all_reduce"}));
}

TEST(CliCollective, ranks_with_another_collective_or_root__refused) {
  for (const auto& [words, named] :
       {std::pair<std::vector<std::string>, const char*>{{"reduce"}, "command=reduce"},
        {{"broadcast", "-r", "1"}, "root=1"},
        {{"broadcast", "-r", "all"}, "root=all"}}) {
    const ScratchDirectory scratch;
    auto commands = ranks_by_hand(2, "file://" + scratch / "meet", {"-b", "1K", "-e", "1K"});
    for (Command& command : commands) command.arguments[1] = "broadcast";
    commands[1].arguments[1] = words[0];
    commands[1].arguments.insert(commands[1].arguments.end(), words.begin() + 1, words.end());
    for (const Ended& rank : run_together(commands)) {
      EXPECT_GT(rank.exit_code, 0) << rank.out;
      EXPECT_THAT(rank.error, HasSubstr(named));
    }
  }
}

TEST(CliCollective, bounded__calls_are_checked_by_what_they_hold) {
  const ScratchDirectory scratch;
  for (const auto& [command, type] : {std::pair{"reduce_scatter", "float"},
                                      {"reduce_scatter", "bfloat16"},
                                      {"all_gather", "float"},
                                      {"all_gather", "int8"}}) {
    SCOPED_TRACE(fmt::format("{} of {}", command, type));
    expect_good(
        run(local_of(command, 3,
                     {"-b", "1M", "-e", "1M", "-n", "4", "-w", "1", "--mode", "bounded", "--bound",
                      "50ms", "-d", type, "--inject-late", "2=200ms", "--json", scratch / "j"})));
    const nlohmann::json results = json_of(scratch / "j")["results"];
    ASSERT_EQ(results.size(), 2u);
    for (const nlohmann::json& result : results) {
      EXPECT_EQ(result["mode"], "bounded");
      EXPECT_EQ(result["nwrong"], 0);
      EXPECT_GT(result["mean_loss"].get<double>() + result["causes"]["late_ranks"].get<double>(),
                0.2);
      EXPECT_TRUE(result["divergence"].is_null());
    }
  }
}

TEST(CliCollective, reduce_scatter__has_no_published_bound) {
  const Ended ended = run(local_of("reduce_scatter", 2, {"--bound", "optireduce"}));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.error, HasSubstr("optireduce"));
}

TEST(CliCollective, sendrecv__one_rank_has_no_peer) {
  const Ended ended = run(local_of("sendrecv", 1, {"-b", "1K", "-e", "1K"}));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_EQ(
      ended.error,
      "tarpon: sendrecv of 1 rank: no rank sends to itself; give 2 ranks or more, for example "
      "--local-ranks 2\n");
}

TEST(CliCollective, sendrecv__each_rank_sends_its_buffer_once) {
  const ScratchDirectory scratch;
  expect_good(run(local_of(
      "sendrecv", 4, {"-b", "4M", "-e", "4M", "-n", "3", "-w", "1", "--json", scratch / "j"})));
  const nlohmann::json result = json_of(scratch / "j")["results"][0];
  for (const auto& sent : result["sent_bytes"]) {
    EXPECT_LT(sent, 1.1 * (4 << 20));
    EXPECT_GT(sent, 4 << 20);
  }
}

TEST(CliCollective, broadcast__the_root_sends_each_byte_once) {
  const ScratchDirectory scratch;
  expect_good(run(local_of(
      "broadcast", 4,
      {"-b", "4M", "-e", "4M", "-n", "3", "-w", "1", "-r", "2", "--json", scratch / "j"})));
  for (const auto& result : json_of(scratch / "j")["results"]) {
    EXPECT_LT(result["sent_bytes"][2], 1.1 * (4 << 20));
    EXPECT_GT(result["sent_bytes"][2], 4 << 20);
  }
}

}  // namespace
}  // namespace tarpon::test::cli_collectives_test
