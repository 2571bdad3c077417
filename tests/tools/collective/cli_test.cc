// `tarpon allreduce --local-ranks` from outside: reports, figures, files.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CliReport, table__nccl_tests_columns) {
  const Ended ended = run(local(3, {"-b", "1K", "-e", "4K", "-f", "2", "-n", "3", "-w", "1"}));
  expect_good(ended);
  const auto head = ended.out.substr(0, ended.out.find("\n   "));
  EXPECT_THAT(head, ::testing::ContainsRegex(
                        "# +size +count +type +redop +root +time +algbw +busbw +#wrong "
                        "+time +algbw +busbw +#wrong +max\n"));
  const auto rows = rows_of(ended.out);
  ASSERT_EQ(rows.size(), 3u) << ended.out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i].size(), 14u) << ended.out;
    const int size = 1024 << i;
    EXPECT_THAT((std::vector(rows[i].begin(), rows[i].begin() + 5)),
                ElementsAre(std::to_string(size), std::to_string(size / 4), "float", "sum", "-1"));
    for (const std::size_t place : {5u, 9u}) {
      EXPECT_GT(std::stod(rows[i][place]), 0);
      EXPECT_EQ(rows[i][place + 3], "0");
    }
    EXPECT_GE(std::stod(rows[i][13]), std::stod(rows[i][9])) << "max, and mean";
  }
}

TEST(CliReport, flags__steps_cycles_checks_types) {
  const auto ended = run_together({
      local(2, {"-b", "0G", "-e", "2K", "-i", "1K", "-n", "1", "-w", "0", "-N", "2"}),
      local(2, {"-b", "1K", "-e", "1M", "-f", "1024", "-n", "100", "-w", "0", "-c", "0",
                "--columns", "out,in,p99"}),
      local(2, {"--minbytes", "1001", "--maxbytes", "1001", "--datatype", "double", "--op", "MAX",
                "--iters", "1", "--warmup_iters", "0", "--timeout", "20"}),
      local(2, {"-b", "3", "-e", "3", "-n", "1"}),
  });
  for (const int checked : {0, 2, 3}) expect_good(ended[static_cast<std::size_t>(checked)]);
  EXPECT_EQ(ended[1].exit_code, 0) << ended[1].error;
  EXPECT_THAT(ended[1].out, HasSubstr("# Out of bounds values : not checked\n"));
  std::vector<std::string> sizes;
  for (const auto& row : rows_of(ended[0].out)) sizes.push_back(row[0]);
  EXPECT_THAT(sizes, ElementsAre("0", "1024", "2048", "0", "1024", "2048"));
  const auto unchecked = rows_of(ended[1].out);
  ASSERT_EQ(unchecked.size(), 2u);
  EXPECT_EQ(unchecked[1][8], "N/A");
  EXPECT_EQ(unchecked[1][12], "N/A");
  EXPECT_GT(std::stod(unchecked[1][13]), 0) << "100 samples have a p99";
  const auto odd = rows_of(ended[2].out);
  EXPECT_THAT((std::vector(odd[0].begin(), odd[0].begin() + 4)),
              ElementsAre("1000", "125", "double", "max"));
  EXPECT_EQ(rows_of(ended[3].out)[0][1], "0") << "3 bytes hold no float";
}

TEST(CliReport, ranks__one_report_for_1_to_8) {
  for (const int first : {1, 5}) {
    std::vector<Command> commands;
    for (int ranks = first; ranks < first + 4; ++ranks) {
      commands.push_back(local(ranks, {"-b", "100004", "-e", "100004", "-n", "2", "-w", "1"}));
    }
    const auto ended = run_together(commands);
    for (std::size_t i = 0; i < ended.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} ranks", static_cast<std::size_t>(first) + i));
      expect_good(ended[i]);
      EXPECT_EQ(rows_of(ended[i].out).size(), 1u);
      const std::size_t ranks = static_cast<std::size_t>(first) + i;
      EXPECT_THAT(ended[i].out, HasSubstr(fmt::format(" {} rank{}, over loopback, ", ranks,
                                                      ranks == 1 ? "" : "s")));
    }
  }
}

TEST(CliReport, types_and_operations__all_right) {
  const Ended ended =
      run(local(3, {"-b", "20K", "-e", "20K", "-n", "1", "-w", "0", "-d", "all", "-o", "all"}));
  expect_good(ended);
  const auto rows = rows_of(ended.out);
  ASSERT_EQ(rows.size(), 4 * 5 + 8 * 8u);
  std::set<std::string> kinds;
  for (const auto& row : rows) {
    SCOPED_TRACE(row[2] + " " + row[3]);
    kinds.insert(row[2] + " " + row[3]);
    EXPECT_EQ(row[8], "0");
    EXPECT_EQ(row[12], "0");
  }
  EXPECT_EQ(kinds.size(), rows.size());
  for (const char* kind : {"float sum", "half prod", "bfloat16 avg", "int8 min", "uint64 bxor"}) {
    EXPECT_TRUE(kinds.contains(kind)) << kind;
  }
}

TEST(CliReport, bounded_half_precision__all_right) {
  for (const char* type : {"half", "bfloat16"}) {
    const Ended ended =
        run(local(4, {"-b", "1M", "-e", "1M", "-n", "4", "-w", "1", "-d", type, "-o", "avg",
                      "--mode", "bounded", "--inject-loss", "2%", "--bound", "20ms"}));
    expect_good(ended);
    EXPECT_EQ(rows_of(ended.out)[0][8], "0");
  }
}

TEST(CliReport, datapath__the_one_asked_for) {
  const ScratchDirectory scratch;
  const auto ended_with = [&](const std::string& name) {
    const Ended ended = run(local(2, {"-b", "1M", "-e", "1M", "-n", "2", "-w", "0", "--datapath",
                                      name, "--json", scratch / (name + ".json")}));
    expect_good(ended);
    return json_of(scratch / (name + ".json"));
  };
  EXPECT_EQ(ended_with("mmsg")["results"][0]["datapath"], "mmsg");
  const std::string chosen = ended_with("auto")["results"][0]["datapath"];
  if (chosen == "mmsg") GTEST_SKIP() << "io_uring is not to be had here";
  EXPECT_EQ(ended_with("uring")["config"]["ranks"][1]["datapath"], "uring");
}

TEST(CliReport, faults__exact_loses_nothing) {
  std::vector<Command> commands;
  const ScratchDirectory scratch;
  for (const char* fault : {"loss", "duplicate", "reorder", "corrupt"}) {
    commands.push_back(
        local(3, {"-b", "500K", "-e", "500K", "-n", "2", "-w", "1",
                  std::string("--inject-") + fault, "2%", "--seed", "5", "-J", scratch / fault}));
  }
  const auto ended = run_together(commands);
  for (const Ended& one : ended) expect_good(one);
  for (const std::string& name : scratch.names()) {
    const nlohmann::json rows = json_of(scratch / name)["results"];
    for (const auto& result : rows) {
      EXPECT_EQ(result["lost_fraction"], 0.0) << name;
      EXPECT_EQ(result["nwrong"], 0) << name;
      EXPECT_EQ(result["mode"], "exact") << name;
    }
  }
}

TEST(CliReport, faults__bounded_counts_the_loss) {
  const ScratchDirectory scratch;
  const Ended ended = run(local(
      3, {"-b", "1M", "-e", "1M", "-n", "3", "-w", "1", "--mode", "bounded", "--bound", "150ms",
          "--without", "repair,scatter-repair", "--inject-loss", "5%", "-J", scratch / "j"}));
  expect_good(ended);
  const nlohmann::json rows = json_of(scratch / "j")["results"];
  for (const auto& result : rows) {
    EXPECT_EQ(result["mode"], "bounded");
    // On a busy machine a rank may be without the processor for most of the bound.
    EXPECT_GT(result["lost_fraction"], 0.0);
    EXPECT_LE(result["lost_fraction"], 1.0);
    EXPECT_GE(result["lost_stage1"].get<double>() + result["lost_stage2"].get<double>(),
              result["lost_fraction"].get<double>() * 0.99);
    EXPECT_EQ(result["nwrong"], 0);
    ASSERT_EQ(result["outcomes"].size(), 3u);
    EXPECT_EQ(result["outcomes"][0]["peers"].size(), 3u);
    EXPECT_EQ(result["outcomes"][0]["stage"], "result");
  }
  EXPECT_GT(std::stod(rows_of(ended.out)[0][13]), 0);
  EXPECT_THAT(ended.out, HasSubstr(": partial: operation "));
}

TEST(CliReport, failure__says_how_far_the_call_had_come) {
  const ScratchDirectory scratch;
  const Ended ended = run(local(2, {"-b", "8M", "-e", "8M", "-n", "1", "-w", "0", "--max-rate",
                                    "8mbit", "--deadline", "500ms", "-J", scratch / "j"}));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("(operation 0 of tag 0, stage scatter, "));
  EXPECT_THAT(ended.error, HasSubstr("of 8388608 B received, last heard "));
  const auto failure = json_of(scratch / "j")["failure"];
  ASSERT_EQ(failure["outcomes"].size(), 2u);
  EXPECT_THAT(ended.error, HasSubstr(failure["error"].get<std::string>()));
  // Both have the same deadline: the first to reach it may end the other's call.
  const std::size_t first = failure["outcomes"][0]["status"] == "peer_late" ? 0 : 1;
  const std::size_t other = 1 - first;
  EXPECT_THAT(ended.error,
              HasSubstr(fmt::format("peer_late: no complete answer from rank {} within", other)));
  const auto outcome = failure["outcomes"][first];
  EXPECT_EQ(outcome["status"], "peer_late");
  EXPECT_EQ(outcome["late_ranks"], nlohmann::json({other}));
  EXPECT_EQ(outcome["peers"][other]["bytes_expected"], nlohmann::json({4 << 20, 4 << 20}));
  EXPECT_LT(outcome["peers"][other]["bytes_received"][0], 4 << 20);
  EXPECT_GE(outcome["peers"][other]["last_heard_us"], 0.0);
}

TEST(CliReport, veth__shaped) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const ScratchDirectory scratch;
  const Ended ended = run(local(3, {"--net",        "veth",
                                    "--mtu",        "9000",
                                    "--rate",       "2gbit",
                                    "--rate-of",    "1=1gbit/128K/400K",
                                    "--loss",       "1%",
                                    "--burst-loss", "0.1%/2",
                                    "--police-of",  "2=3gbit/256K",
                                    "--flow-limit", "3gbit/256K",
                                    "--background", "1",
                                    "-b",           "256K",
                                    "-e",           "256K",
                                    "-n",           "3",
                                    "-w",           "1",
                                    "--json",       scratch / "j"}));
  expect_good(ended);
  EXPECT_THAT(ended.out,
              ::testing::ContainsRegex("# bridge +: of [0-9]+ packets [1-9][0-9]* lost"));
  EXPECT_THAT(ended.out,
              ::testing::ContainsRegex("# links to ranks +: carried [1-9][0-9]* packets"));
  const nlohmann::json rows = json_of(scratch / "j")["config"]["ranks"];
  for (const auto& rank : rows) {
    EXPECT_EQ(rank["interface"], "eth0");
    EXPECT_EQ(rank["driver"], "veth");
    EXPECT_EQ(rank["mtu"], 9000);
  }
  EXPECT_THAT(ended.out, HasSubstr(" 3 ranks, over network namespaces (veth), "));
  EXPECT_THAT(unwrapped(ended.out),
              HasSubstr("rank 0 on eth0 (the interface of the rank's namespace)"));
}

TEST(CliReport, veth__several_ranks_on_a_host) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const ScratchDirectory scratch;
  for (const auto& [per_host, sizes, first] :
       {std::tuple{"3", "(3, 2)", "10.77.0.1"}, {"3/round-robin", "(3, 2)", "10.77.0.2"}}) {
    const Ended ended = run(
        local(5, {"--net", "veth", "--per-host", per_host, "--datapath", "uring", "--max-rate",
                  "1gbit", "-b", "4", "-e", "1M", "-f", "64", "-n", "3", "--json", scratch / "j"}));
    expect_good(ended);
    EXPECT_THAT(ended.out, HasSubstr(std::string("# hosts: 5 ranks on 2 hosts ") + sizes));
    EXPECT_THAT(ended.out, HasSubstr("uring"));
    const nlohmann::json report = json_of(scratch / "j");
    EXPECT_EQ(report["config"]["ranks"][1]["address"], first);
    for (const auto& row : report["results"]) {
      EXPECT_EQ(row["algorithm"], "hosts");
      EXPECT_EQ(row["nwrong"], 0);
    }
  }
}

// Each host rounds its sums of half precision.
TEST(CliReport, veth__bounded_calls_and_averages_of_halves_over_hosts) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const ScratchDirectory scratch;
  for (const char* const mode : {"exact", "bounded"}) {
    const Ended ended =
        run(local(5, {"--net", "veth", "--per-host", "3",  "--mode", mode,         "-d",
                      "half",  "--op", "avg",        "-b", "4",      "-e",         "1M",
                      "-f",    "64",   "-n",         "3",  "--json", scratch / "j"}));
    expect_good(ended);
    for (const auto& row : json_of(scratch / "j")["results"]) {
      EXPECT_EQ(row["algorithm"], "hosts");
      EXPECT_EQ(row["nwrong"], 0);
    }
  }
}

TEST(CliReport, hosts__calls_that_go_over_the_network_say_why) {
  for (const auto& [flags, why] :
       {std::pair<std::vector<std::string>, const char*>{{}, "of memory each\n"},
        {{"--algorithm", "ring"}, "each; unused: algorithm ring goes over the network"},
        {{"--mode", "bounded", "--bound", "1s"}, "each; unused: bounded calls"}}) {
    std::vector<std::string> all{"-b", "4K", "-e", "4K", "-n", "2"};
    all.insert(all.end(), flags.begin(), flags.end());
    const Ended ended = run(local(2, all));
    expect_good(ended);
    EXPECT_THAT(ended.out, HasSubstr(std::string("# hosts: 2 ranks on one host")));
    EXPECT_THAT(unwrapped(ended.out) + "\n", HasSubstr(why));
  }
}

TEST(CliJson, schema__config) {
  const ScratchDirectory scratch;
  const Ended ended = run(local(2, {"-b", "1K", "-e", "2K", "-f", "2", "-n", "4", "-w", "1",
                                    "--seed", "9", "--json", scratch / "report.json"}));
  expect_good(ended);
  const auto report = json_of(scratch / "report.json");
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report.size(), 2u);
  const auto& config = report["config"];
  EXPECT_THAT(config["command"].get<std::string>(), HasSubstr("allreduce --local-ranks 2 -b 1K"));
  for (const char* name : {"version", "git_commit", "kernel", "cpu"}) {
    EXPECT_TRUE(config[name].is_string() && config[name] != "") << name;
  }
  EXPECT_EQ(config["seed"], 9);
  ASSERT_EQ(config["ranks"].size(), 2u);
  EXPECT_EQ(config["ranks"][1]["interface"], "lo");
  EXPECT_TRUE(config["ranks"][1]["driver"].is_string());
  EXPECT_TRUE(config["ranks"][1]["mtu"].is_number_unsigned());
  EXPECT_TRUE(config["ranks"][1]["datapath"].is_string());
  EXPECT_THAT(scratch.names(), ElementsAre("report.json")) << "no temporary file stays";
}

TEST(CliJson, schema__results) {
  const ScratchDirectory scratch;
  expect_good(run(local(4, {"-b", "1K", "-e", "2K", "-f", "2", "-n", "4", "-w", "1", "-d", "int32",
                            "--json", scratch / "report.json"})));
  const auto results = json_of(scratch / "report.json")["results"];
  ASSERT_EQ(results.size(), 4u);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& result = results[i];
    const double size = i < 2 ? 1024 : 2048;
    EXPECT_EQ(result["size"], size);
    EXPECT_EQ(result["count"], size / 4);
    EXPECT_EQ(result["type"], "int32");
    EXPECT_EQ(result["redop"], "sum");
    EXPECT_EQ(result["place"], i % 2 == 0 ? "out" : "in");
    EXPECT_EQ(result["algorithm"], "hosts");
    const auto& times = result["time_us"];
    ASSERT_EQ(times["all"].size(), 4u);
    EXPECT_EQ(result["lost_all"], nlohmann::json({0.0, 0.0, 0.0, 0.0}));
    EXPECT_TRUE(times["p99"].is_null());
    double sum = 0;
    for (const double one : times["all"]) {
      EXPECT_GE(one, times["min"].get<double>());
      EXPECT_LE(one, times["max"].get<double>());
      sum += one;
    }
    EXPECT_NEAR(times["mean"].get<double>(), sum / 4, 1e-6);
    EXPECT_NEAR(result["alg_bw"].get<double>(), size / (sum / 4) / 1e3, 1e-9);
    EXPECT_NEAR(result["bus_bw"].get<double>(), result["alg_bw"].get<double>() * 1.5, 1e-9);
    EXPECT_EQ(result["nwrong"], 0);
    for (const char* name : {"lost_fraction", "lost_stage1", "lost_stage2"}) {
      EXPECT_EQ(result[name], 0.0) << name;
    }
    EXPECT_EQ(result["late_ranks"], nlohmann::json::array());
  }
}

TEST(CliJson, command_line__need_not_be_utf8) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "report\xff.json";
  expect_good(run(local(1, {"-b", "8", "-e", "8", "-n", "1", "--json", path})));
  const auto report = json_of(path);
  ASSERT_TRUE(report.is_object());
  EXPECT_THAT(report["config"]["command"].get<std::string>(), HasSubstr("report\xef\xbf\xbd.json"));
  EXPECT_FALSE(report["results"][0]["time_us"]["p50"].is_null()) << "of one sample";
}

TEST(CliJson, dash__is_standard_output_and_the_text_goes_to_standard_error) {
  const ScratchDirectory scratch;
  Command command = local(2, {"-b", "1K", "-e", "1K", "-n", "2", "-J", "-"});
  command.directory = scratch.path();
  const Ended ended = run(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_EQ(nlohmann::json::parse(ended.out, nullptr, false)["results"].size(), 2u) << ended.out;
  EXPECT_THAT(ended.error, HasSubstr("# Out of bounds values : 0 OK\n"));
  EXPECT_TRUE(scratch.names().empty());
  const Ended check = run(tool({"check", "--local-ranks", "2", "--probes", "2", "-J", "-"}));
  EXPECT_EQ(nlohmann::json::parse(check.out, nullptr, false)["results"].size(), 2u) << check.out;
  EXPECT_THAT(check.error, HasSubstr("# all 2 pairs work"));
}

/// The number of the call that the process `rank` has ended last; nothing if that was a barrier.
std::optional<std::uint64_t> last_ended(pid_t rank) {
  constexpr std::uint64_t kBarriers = 0xffffffff;
  const Ended ended = run(tool({"status", "--json"}));
  const auto json = nlohmann::json::parse(ended.out, nullptr, false);
  for (const auto& row : json["results"]) {
    if (row["pid"] != rank || !row["last_end"].is_object()) continue;
    if (row["last_end"]["tag"] == kBarriers) continue;
    return row["last_end"]["operation"].get<std::uint64_t>();
  }
  return std::nullopt;
}

/// Waits until the process `rank` has ended `calls` more calls; false after a long time.
bool ends_calls(pid_t rank, std::uint64_t calls) {
  std::optional<std::uint64_t> before;
  for (int looks = 0; looks < 600; ++looks) {
    const std::optional<std::uint64_t> last = last_ended(rank);
    if (!before) before = last;
    if (last && *last >= *before + calls) return true;
    ::usleep(20'000);
  }
  return false;
}

TEST(CliJson, interrupt__leaves_the_figures_so_far) {
  struct Case {
    int signal;
    bool to_all;  // processes of the group, as `timeout` and batch systems do it
  };
  for (const auto [signal, to_all] :
       {Case{SIGINT, false}, Case{SIGTERM, false}, Case{SIGINT, true}, Case{SIGTERM, true}}) {
    SCOPED_TRACE(fmt::format("signal {}{}", signal, to_all ? " to all" : ""));
    const ScratchDirectory scratch;
    // The second size takes minutes, and tarpon status seconds beside other jobs.
    Process job(local(2, {"-b", "1K", "-e", "16M", "-f", "16384", "-n", "10000", "-w", "0",
                          "--json", scratch / "j"}));
    ASSERT_TRUE(job.says("   -1   ")) << job.wait(0ms).error;  // the first row
    ASSERT_EQ(job.children().size(), 2u);
    // Some of them may belong to the first row.
    ASSERT_TRUE(ends_calls(job.children().front(), 20)) << job.wait(0ms).error;
    ::kill(job.pid(), signal);
    const Ended ended = job.wait();
    EXPECT_EQ(ended.exit_code, 128 + signal);
    EXPECT_EQ(ended.error,
              fmt::format("tarpon: interrupted by signal {} ({})\n", signal, ::strsignal(signal)));
    EXPECT_THAT(ended.out, HasSubstr("# interrupted          : 16777216 B out-of-place: "));
    EXPECT_THAT(ended.out, HasSubstr("# Avg bus bandwidth    : "));
    const auto report = json_of(scratch / "j");
    EXPECT_EQ(report["interrupted"], true) << report.dump();
    EXPECT_FALSE(report.contains("failure")) << report.dump();
    EXPECT_EQ(report["results"].size(), 2u);
    EXPECT_EQ(report["partial"]["size"], 16 << 20);
    EXPECT_GT(report["partial"]["time_us"].size(), 0u);
  }
}

TEST(CliReport, bounded__says_where_calls_ran_exact) {
  const Ended ended =
      run(local(2, {"-b", "1K", "-e", "1K", "-n", "2", "-d", "int32", "--mode", "bounded"}));
  expect_good(ended);
  EXPECT_THAT(ended.out, HasSubstr("#   in-place: ran exact: int32 sum has no bounded form\n"));
}

TEST(CliReport, variables__of_tarpon_run_have_no_effect_and_the_report_says_so) {
  Command command = local(2, {"-b", "1K", "-e", "1K", "-n", "2"});
  command.environment = {{"TARPON_BOUND", "abc"}, {"TARPON_BOUNDED_MIN", "abc"}};
  const Ended ended = run(command);
  expect_good(ended);
  EXPECT_THAT(ended.out,
              HasSubstr("# TARPON_BOUND has no effect on tarpon all_reduce: give --bound\n"));
}

TEST(CliReport, bound_that_is_too_short__names_one_that_would_do) {
  if (::geteuid() != 0) GTEST_SKIP() << "the testbed needs root";
  std::string out;
  const auto lost = [&out](const std::string& bound) {
    const ScratchDirectory scratch;
    const Ended ended = run(
        local(2, {"--net", "veth", "--rate", "200mbit", "-b", "1M", "-e", "1M", "-n", "5", "--mode",
                  "bounded", "--bound", bound, "--codec", "off", "-J", scratch / "j"}));
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
    out = ended.out;
    double share = 1;
    const nlohmann::json report = json_of(scratch / "j");
    for (const auto& result : report["results"]) {
      share = 0;
      for (const auto& one : result["lost_all"]) share += one.get<double>() / 5;
      EXPECT_NEAR(result["bus_bw"].get<double>(), result["alg_bw"].get<double>() * (1 - share),
                  1e-6);
    }
    return share;  // in place
  };
  const double before = lost("2ms");
  std::smatch found;
  const std::regex warning(
      "# warning: --bound 2ms is too short for 1M: .* so --bound (\\S+) would");
  ASSERT_TRUE(std::regex_search(out, found, warning)) << out;
  const std::string named = found[1];
  double after = lost(named);
  // Other tests may take the processors meanwhile.
  for (int attempt = 0; attempt < 5 && after > before / 2; ++attempt) after = lost(named);
  EXPECT_LE(after, before / 2) << out;
}

}  // namespace
}  // namespace tarpon::test::cli_test
